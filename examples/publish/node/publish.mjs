// Publish one `send` with Node: node publish.mjs LOGIN EMAIL CODE
import {PubSub} from '@google-cloud/pubsub';

const [login, email, code] = process.argv.slice(2);
const topicName = process.env.SENDONCE_TOPIC;
if (!login || !email || !code || !topicName) {
  console.error('usage: SENDONCE_TOPIC=projects/PROJECT/topics/NAME node publish.mjs LOGIN EMAIL CODE');
  process.exit(2);
}

const trigger = {
  v: 1,
  type: 'send',
  // From the event, not from the clock or at random: whoever runs this again must make the same key.
  idempotency_key: `${login}-code`,
  template: 'otp',
  priority: 'critical',
  recipients: [{recipient_id: login, email, variables: {code}}],
};

const pubsub = new PubSub({projectId: topicName.split('/')[1]});
// The client tries again by itself what passes; how long is set here (its own is ten minutes).
const topic = pubsub.topic(topicName, {
  batching: {maxMilliseconds: 10},
  gaxOpts: {retry: {backoffSettings: {
    initialRetryDelayMillis: 100, retryDelayMultiplier: 2, maxRetryDelayMillis: 5000,
    initialRpcTimeoutMillis: 10000, rpcTimeoutMultiplier: 1, maxRpcTimeoutMillis: 10000, totalTimeoutMillis: 60000,
  }}},
});

try {
  const id = await topic.publishMessage({
    json: trigger,
    // A subscription's filter sees these and never the body.
    attributes: {type: trigger.type, priority: trigger.priority},
  });
  console.log(`published as ${id}`);
} catch (fault) {
  // The code says what is wrong; the message may repeat what was sent.
  console.error(`not published: code ${fault.code ?? fault.name}`);
  process.exitCode = 1;
} finally {
  await pubsub.close();
}
