// A mail server of another make for the tests: smtp-server on loopback. It prints its port, then a JSON line for each
// letter that it took, before it says so to the client. Its one argument is JSON: {pem, user, password, hideSTARTTLS}.
import {readFileSync} from "node:fs";
import {SMTPServer} from "smtp-server";

const options = JSON.parse(process.argv[2] ?? "{}");
const pem = options.pem ? readFileSync(options.pem) : undefined;
const refused = (code, words) => Object.assign(new Error(words), {responseCode: code});

const server = new SMTPServer({
  name: "node.fake.example",
  key: pem,
  cert: pem,
  hideSTARTTLS: !pem,
  authOptional: !options.user,
  disabledCommands: options.user ? [] : ["AUTH"],
  onAuth(auth, session, done) {
    const right = auth.username === options.user && auth.password === options.password;
    return right ? done(null, {user: auth.username}) : done(refused(535, "5.7.8 wrong user or password"));
  },
  onRcptTo(address, session, done) {
    done(address.address.startsWith("nobody@") ? refused(550, "5.1.1 no such user") : undefined);
  },
  onData(stream, session, done) {
    const parts = [];
    stream.on("data", (part) => parts.push(part));
    stream.on("end", () => {
      const {mailFrom, rcptTo} = session.envelope;
      const letter = {
        to: rcptTo.map((one) => one.address),
        from: mailFrom.address,
        data: Buffer.concat(parts).toString("base64"),
        tls: session.secure,
        user: session.user ?? "",
      };
      process.stdout.write(JSON.stringify(letter) + "\n");
      done(null, "queued as NODE0001");
    });
  },
});
server.on("error", () => {});
server.listen(0, "127.0.0.1", () => process.stdout.write(`${server.server.address().port}\n`));
process.on("SIGTERM", () => process.exit(0));
