// The page's way to the loudspeaker: one audio context for all sessions, and one queue on the audio thread for each.
//
// `Sound` owns the context from the first gesture of the user, before which browsers allow none. `Player` owns the queue
// of one session and turns its times into times of the page. Knows no socket, no text and no element.

const STOP_ANSWER_MS = 100;

export class Sound {
  constructor(rateHz) {
    this.rateHz = rateHz;
    this.opening = null;
  }

  // Browsers have audio worklets on pages that nobody can have changed on their way: https, or this very machine.
  static get allowed() {
    return globalThis.isSecureContext && "AudioWorkletNode" in globalThis;
  }

  async context() {
    this.opening ??= this.open();
    const context = await this.opening.catch((error) => {
      this.opening = null; // so that the next gesture tries again
      throw error;
    });
    if (context.state !== "running") await context.resume();
    return context;
  }

  async open() {
    const context = new AudioContext({ sampleRate: this.rateHz, latencyHint: "interactive" });
    await context.audioWorklet.addModule("/web/queue-worklet.js");
    return context;
  }

  async player(tell) {
    return new Player(await this.context(), tell);
  }
}

export class Player {
  constructor(context, tell) {
    this.context = context;
    this.tell = tell;
    this.stops = [];
    // The audio thread has no clock but that of the wall. One difference for all it says keeps its events in order.
    this.wallAheadMs = Date.now() - performance.now();
    this.node = new AudioWorkletNode(context, "packet-queue", { numberOfInputs: 0, outputChannelCount: [1] });
    this.node.port.onmessage = ({ data }) => this.heard(data);
    this.node.connect(context.destination);
  }

  // `samples` moves to the audio thread; the caller has it no longer.
  put(utterance, samples) {
    this.node.port.postMessage({ kind: "put", utterance, samples }, [samples.buffer]);
  }

  end(utterance) {
    this.node.port.postMessage({ kind: "end", utterance });
  }

  startAfter(milliseconds) {
    this.node.port.postMessage({ kind: "start", samples: (milliseconds / 1000) * this.context.sampleRate });
  }

  // Silence now; resolves with what was played of the utterance that was being heard, or null if nobody answers.
  stop() {
    this.node.port.postMessage({ kind: "stop" });
    return new Promise((resolve) => {
      this.stops.push(resolve);
      setTimeout(() => resolve(null), STOP_ANSWER_MS);
    });
  }

  close() {
    this.node.port.postMessage({ kind: "close" });
    this.node.disconnect();
  }

  get outputMs() {
    return 1000 * (this.context.outputLatency || this.context.baseLatency || 0);
  }

  heard(message) {
    if (message.kind === "stopped") {
      this.stops.shift()?.(message);
      return;
    }
    this.tell({ ...message, atMs: message.clockMs - this.wallAheadMs });
  }
}
