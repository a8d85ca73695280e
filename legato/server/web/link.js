// One WebSocket to `/v1/audio/speech/stream`: the dialect's client half (docs/protocols.md).
//
// Owns the connection and the numbers of its utterances from `open` to its close, and knows which utterance the binary
// frames that come belong to. After a cancel it drops all audio until the server has answered: what follows is new.
// Tells everything to `handler`, by the names of its methods. Plays nothing and shows nothing.

const ROUTE = "/v1/audio/speech/stream";
const PROTOCOL = "legato";

export class Link {
  constructor(key, handler) {
    this.handler = handler;
    this.next = 0;
    this.speaking = null;
    this.cancelling = 0;
    const url = new URL(ROUTE, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    this.socket = new WebSocket(url, key ? [PROTOCOL, `openai-insecure-api-key.${key}`] : [PROTOCOL]);
    this.socket.binaryType = "arraybuffer";
    this.socket.onmessage = ({ data }) => (typeof data === "string" ? this.take(JSON.parse(data)) : this.audio(data));
    this.opened = new Promise((resolve, reject) => {
      this.socket.onopen = resolve;
      this.socket.onclose = (event) => {
        reject(new Error(event.reason || "closed"));
        this.handler.closed(this, event.reason);
      };
    });
    this.opened.catch(() => {}); // whoever waits for it is told; nobody may be waiting
  }

  get open() {
    return this.socket.readyState === WebSocket.OPEN;
  }

  get over() {
    return this.socket.readyState > WebSocket.OPEN;
  }

  configure(config) {
    this.send({ ...config, type: "session.config" });
  }

  // A whole utterance; returns its number on this connection.
  say(text) {
    this.send({ type: "input.text", text });
    this.send({ type: "input.done" });
    this.next += 1;
    return this.next - 1;
  }

  // From here on nothing of what was asked before comes through. `cancel` has to follow.
  mute() {
    this.cancelling += 1;
  }

  // Barge-in; `played` samples of utterance `number` were heard, where that is known.
  cancel(number, played) {
    const known = number === null ? {} : { utterance_index: number, played_through_sample: played };
    this.send({ type: "input.cancel", ...known });
  }

  acknowledge(number, played) {
    this.send({ type: "playback.ack", utterance_index: number, played_through_sample: played });
  }

  close() {
    this.socket.close();
  }

  send(message) {
    if (this.open) this.socket.send(JSON.stringify(message));
  }

  audio(data) {
    if (!this.cancelling && this.speaking !== null) this.handler.audio(this.speaking, new Int16Array(data));
  }

  take(message) {
    const number = message.utterance_index;
    if (message.type === "input.cancelled") {
      this.cancelling = Math.max(0, this.cancelling - 1);
      this.speaking = null;
      this.handler.cancelled(message.utterances);
    } else if (message.type === "error") {
      this.handler.refused(number ?? null, message);
    } else if (this.cancelling) {
      return;
    } else if (message.type === "audio.start") {
      this.speaking = number;
      this.handler.started(number, message);
    } else if (message.type === "audio.timestamps") {
      this.handler.words(number, message.words);
    } else if (message.type === "audio.done") {
      this.handler.made(number, message);
    }
  }
}
