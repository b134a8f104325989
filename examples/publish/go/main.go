// Publish one `send` with Go: go run . LOGIN EMAIL CODE
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"google.golang.org/grpc/status"
)

type recipient struct {
	RecipientID string         `json:"recipient_id"`
	Email       string         `json:"email"`
	Variables   map[string]any `json:"variables,omitempty"`
}

type send struct {
	V              int         `json:"v"`
	Type           string      `json:"type"`
	IdempotencyKey string      `json:"idempotency_key"`
	Template       string      `json:"template"`
	Priority       string      `json:"priority"`
	Recipients     []recipient `json:"recipients"`
}

func main() {
	topic := os.Getenv("SENDONCE_TOPIC")
	parts := strings.Split(topic, "/")
	if len(os.Args) != 4 || len(parts) != 4 {
		fmt.Fprintln(os.Stderr, "usage: SENDONCE_TOPIC=projects/PROJECT/topics/NAME go run . LOGIN EMAIL CODE")
		os.Exit(2)
	}
	id, err := publish(parts[1], topic, os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		// The code says what is wrong; the message may repeat what was sent.
		fmt.Fprintf(os.Stderr, "not published: %s\n", status.Code(err))
		os.Exit(1)
	}
	fmt.Printf("published as %s\n", id)
}

func publish(project, topic, login, email, code string) (string, error) {
	trigger := send{
		V:    1,
		Type: "send",
		// From the event, not from the clock or at random: whoever runs this again must make the same key.
		IdempotencyKey: login + "-code",
		Template:       "otp",
		Priority:       "critical",
		Recipients: []recipient{{
			RecipientID: login,
			Email:       email,
			Variables:   map[string]any{"code": code},
		}},
	}
	body, err := json.Marshal(trigger)
	if err != nil {
		return "", err
	}

	// The client tries again by itself what passes, until the context ends.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := pubsub.NewClient(ctx, project)
	if err != nil {
		return "", err
	}
	defer client.Close()
	publisher := client.Publisher(topic)
	defer publisher.Stop()
	publisher.PublishSettings.Timeout = time.Minute
	result := publisher.Publish(ctx, &pubsub.Message{
		Data: body,
		// A subscription's filter sees these and never the body.
		Attributes: map[string]string{"type": trigger.Type, "priority": trigger.Priority},
	})
	return result.Get(ctx)
}
