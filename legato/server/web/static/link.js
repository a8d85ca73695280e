// WebSocket client of `/v1/audio/speech/stream` (docs/protocols.md).
//
// A `Link` owns one connection, numbers its utterances, and assigns binary frames to the current utterance. After a cancel
// it drops all audio until the server confirms the cancel, because that audio belongs to cancelled utterances. Events are
// passed to the methods of `handler`.

const ROUTE = "../v1/audio/speech/stream";
const PROTOCOL = "legato";

export class Link {
  constructor(key, handler) {
    this.handler = handler;
    this.nextNumber = 0;
    this.currentNumber = null;
    this.pendingCancels = 0;
    const url = new URL(ROUTE, import.meta.url);
    url.protocol = url.protocol.replace("http", "ws");
    this.socket = new WebSocket(url, key ? [PROTOCOL, `openai-insecure-api-key.${key}`] : [PROTOCOL]);
    this.socket.binaryType = "arraybuffer";
    this.socket.onmessage = ({ data }) =>
      typeof data === "string" ? this.onEvent(JSON.parse(data)) : this.onAudio(data);
    this.opened = new Promise((resolve, reject) => {
      this.socket.onopen = resolve;
      this.socket.onclose = (event) => {
        reject(new Error(event.reason || "closed"));
        this.handler.onClosed(this, event.reason);
      };
    });
    this.opened.catch(() => {}); // callers that await `opened` handle the error; without this it is reported as unhandled
  }

  get isOpen() {
    return this.socket.readyState === WebSocket.OPEN;
  }

  get isClosed() {
    return this.socket.readyState > WebSocket.OPEN;
  }

  configure(config) {
    this.send({ ...config, type: "session.config" });
  }

  // Send a complete utterance; returns its number on this connection.
  speak(text) {
    this.send({ type: "input.text", text });
    this.send({ type: "input.done" });
    this.nextNumber += 1;
    return this.nextNumber - 1;
  }

  // Drop all audio from now on. The caller must call `cancel` afterwards; its confirmation ends the muting.
  mute() {
    this.pendingCancels += 1;
  }

  // Barge-in; `played`: samples of utterance `number` that were played, if known.
  cancel(number, played) {
    const position = number === null ? {} : { utterance_index: number, played_through_sample: played };
    this.send({ type: "input.cancel", ...position });
  }

  acknowledge(number, played) {
    this.send({ type: "playback.ack", utterance_index: number, played_through_sample: played });
  }

  close() {
    this.socket.close();
  }

  send(message) {
    if (this.isOpen) this.socket.send(JSON.stringify(message));
  }

  onAudio(data) {
    if (!this.pendingCancels && this.currentNumber !== null) this.handler.onAudio(this.currentNumber, new Int16Array(data));
  }

  onEvent(message) {
    const number = message.utterance_index;
    if (message.type === "input.cancelled") {
      this.pendingCancels = Math.max(0, this.pendingCancels - 1);
      this.currentNumber = null;
      this.handler.onCancelled(message.utterances);
    } else if (message.type === "error") {
      this.handler.onError(number ?? null, message);
    } else if (this.pendingCancels) {
      return;
    } else if (message.type === "audio.start") {
      this.currentNumber = number;
      this.handler.onAudioStart(number, message);
    } else if (message.type === "audio.timestamps") {
      this.handler.onWords(number, message.words);
    } else if (message.type === "audio.done") {
      this.handler.onAudioEnd(number, message);
    }
  }
}
