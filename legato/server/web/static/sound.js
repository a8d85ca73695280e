// Audio output: one audio context shared by all sessions, and one playback queue on the audio thread per session.
//
// `Sound` owns the context, created at the first user gesture (browsers do not allow it earlier). `Player` owns the queue of
// one session and converts its timestamps to the page's clock.

const STOP_TIMEOUT_MS = 100;

export class Sound {
  constructor(rateHz) {
    this.rateHz = rateHz;
    this.opening = null;
  }

  // Browsers offer audio worklets only in secure contexts: https or localhost.
  static get allowed() {
    return globalThis.isSecureContext && "AudioWorkletNode" in globalThis;
  }

  async context() {
    this.opening ??= this.open();
    const context = await this.opening.catch((error) => {
      this.opening = null; // the next gesture tries again
      throw error;
    });
    if (context.state !== "running") await context.resume();
    return context;
  }

  async open() {
    const context = new AudioContext({ sampleRate: this.rateHz, latencyHint: "interactive" });
    await context.audioWorklet.addModule(new URL("queue-worklet.js", import.meta.url));
    return context;
  }

  async player(onMessage) {
    return new Player(await this.context(), onMessage);
  }
}

export class Player {
  constructor(context, onMessage) {
    this.context = context;
    this.onMessage = onMessage;
    this.pendingStops = [];
    // The audio thread only has the wall clock. One fixed offset converts all its times, so that events stay in order.
    this.clockOffsetMs = Date.now() - performance.now();
    this.node = new AudioWorkletNode(context, "packet-queue", { numberOfInputs: 0, outputChannelCount: [1] });
    this.node.port.onmessage = ({ data }) => this.receive(data);
    this.node.connect(context.destination);
  }

  // Transfers `samples` to the audio thread; the caller can no longer use the array.
  put(utterance, samples) {
    this.node.port.postMessage({ kind: "put", utterance, samples }, [samples.buffer]);
  }

  end(utterance) {
    this.node.port.postMessage({ kind: "end", utterance });
  }

  setStartBuffer(milliseconds) {
    this.node.port.postMessage({ kind: "start", samples: (milliseconds / 1000) * this.context.sampleRate });
  }

  // Stop playback now. Resolves with the played samples of the current utterance, or null after a timeout.
  stop() {
    this.node.port.postMessage({ kind: "stop" });
    return new Promise((resolve) => {
      this.pendingStops.push(resolve);
      setTimeout(() => resolve(null), STOP_TIMEOUT_MS);
    });
  }

  close() {
    this.node.port.postMessage({ kind: "close" });
    this.node.disconnect();
  }

  get outputMs() {
    return 1000 * (this.context.outputLatency || this.context.baseLatency || 0);
  }

  receive(message) {
    if (message.kind === "stopped") {
      this.pendingStops.shift()?.(message);
      return;
    }
    this.onMessage({ ...message, timeMs: message.clockMs - this.clockOffsetMs });
  }
}
