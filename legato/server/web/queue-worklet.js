// The playback queue of one session, on the audio thread: packets in, samples out.
//
// Owns the samples that wait to be heard, from `put` until they are played or `stop` drops them, and counts what was
// played of each utterance. Sixteen-bit samples become floats by a division by 32768, which is exact; nothing else
// happens to them. Knows no socket and no page: it hears messages on its port and answers there.
//
// In:  {kind: "put", utterance, samples: Int16Array}   more of an utterance; utterances are heard in this order
//      {kind: "end", utterance}                        it has no more
//      {kind: "stop"}                                  silence, now; answered by "stopped"
//      {kind: "start", samples}                        what is collected before a silent queue begins
//      {kind: "close"}                                 the session is gone
// Out: began, audible, dry, level, over, stopped: each with the utterance and the wall clock, in milliseconds.

const FADE_SAMPLES = 128;
const LEVEL_QUANTA = 6;
const AUDIBLE = 164; // -46 dBFS

class PacketQueue extends AudioWorkletProcessor {
  constructor() {
    super();
    this.items = [];
    this.waiting = 0;
    this.startSamples = 0;
    this.running = false;
    this.speaking = null;
    this.fade = [];
    this.quanta = 0;
    this.open = true;
    this.port.onmessage = ({ data }) => this.take(data);
  }

  take(message) {
    if (message.kind === "put") {
      this.items.push({ utterance: message.utterance, samples: message.samples, taken: 0 });
      this.waiting += message.samples.length;
    } else if (message.kind === "end") {
      this.items.push({ utterance: message.utterance, samples: null, taken: 0 });
    } else if (message.kind === "start") {
      this.startSamples = message.samples;
    } else if (message.kind === "close") {
      this.open = false;
    } else if (message.kind === "stop") {
      this.stop();
    }
  }

  // A hard cut would click: the next few samples fade out, and all the others are gone.
  stop() {
    const next = this.running ? this.items.find((item) => item.samples) : undefined;
    const rest = next ? next.samples.subarray(next.taken, next.taken + FADE_SAMPLES) : [];
    this.fade = Array.from(rest, (sample, at) => (sample / 32768) * (1 - (at + 1) / FADE_SAMPLES));
    const { utterance = null, played = 0 } = this.speaking ?? {};
    this.items = [];
    this.waiting = 0;
    this.rest();
    this.post("stopped", { utterance, played });
  }

  rest() {
    this.running = false;
    this.speaking = null;
  }

  process(_inputs, outputs) {
    const output = outputs[0][0];
    const faded = this.fade.splice(0, output.length);
    output.set(faded);
    let at = faded.length;
    while (at < output.length && this.items.length && this.mayPlay()) {
      const item = this.items[0];
      at += item.samples ? this.play(item, output, at) : this.finish(item);
    }
    if (this.speaking && at < output.length) this.speaking.dry += output.length - at;
    this.tell();
    return this.open;
  }

  mayPlay() {
    this.running ||= this.waiting >= this.startSamples || this.items.some((item) => !item.samples);
    return this.running;
  }

  play(item, output, at) {
    if (!this.speaking) this.begin(item.utterance);
    const speaking = this.speaking;
    if (speaking.dry) {
      this.post("dry", { utterance: item.utterance, samples: speaking.dry });
      speaking.dry = 0;
    }
    const count = Math.min(output.length - at, item.samples.length - item.taken);
    for (let index = 0; index < count; index += 1) {
      const sample = item.samples[item.taken + index];
      output[at + index] = sample / 32768;
      if (!speaking.audible && Math.abs(sample) >= AUDIBLE) this.audible();
    }
    item.taken += count;
    speaking.played += count;
    this.waiting -= count;
    if (item.taken === item.samples.length) this.items.shift();
    return count;
  }

  begin(utterance) {
    this.speaking = { utterance, played: 0, dry: 0, audible: false };
    this.post("began", { utterance });
  }

  finish(item) {
    const played = this.speaking ? this.speaking.played : 0;
    this.items.shift();
    this.speaking = null;
    if (!this.items.length) this.rest();
    this.post("over", { utterance: item.utterance, played });
    return 0;
  }

  audible() {
    this.speaking.audible = true;
    this.post("audible", { utterance: this.speaking.utterance });
  }

  tell() {
    this.quanta += 1;
    if (!this.speaking || this.quanta % LEVEL_QUANTA) return;
    const { utterance, played, dry } = this.speaking;
    this.post("level", { utterance, played, standing: dry > 0 });
  }

  post(kind, message) {
    this.port.postMessage({ kind, clockMs: Date.now(), ...message });
  }
}

registerProcessor("packet-queue", PacketQueue);
