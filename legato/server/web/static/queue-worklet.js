// The playback queue of one session, on the audio thread: packets in, samples out.
//
// The processor owns the samples that wait to be played, from `put` until they are played or `stop` drops them, and counts
// the played samples of each utterance. 16-bit samples become floats by a division by 32768, which is exact; they are not
// processed otherwise. It communicates only through messages on its port.
//
// In:  {kind: "put", utterance, samples: Int16Array}   append audio; utterances are played in this order
//      {kind: "end", utterance}                        the utterance is complete
//      {kind: "stop"}                                  silence now; answered by "stopped"
//      {kind: "start", samples}                        buffer this many samples before playback starts from silence
//      {kind: "close"}                                 the session was removed
// Out: started, audible, underrun, progress, finished, stopped: each with the utterance and the wall clock in milliseconds.

const FADE_SAMPLES = 128;
const PROGRESS_QUANTA = 6; // a progress message every 6 render quanta of 128 samples
const AUDIBLE = 164; // -46 dBFS

class PacketQueue extends AudioWorkletProcessor {
  constructor() {
    super();
    this.items = [];
    this.bufferedSamples = 0;
    this.startSamples = 0;
    this.playing = false;
    this.current = null; // the utterance being played
    this.fade = [];
    this.quanta = 0;
    this.open = true;
    this.port.onmessage = ({ data }) => this.receive(data);
  }

  receive(message) {
    if (message.kind === "put") {
      this.items.push({ utterance: message.utterance, samples: message.samples, position: 0 });
      this.bufferedSamples += message.samples.length;
    } else if (message.kind === "end") {
      this.items.push({ utterance: message.utterance, samples: null, position: 0 });
    } else if (message.kind === "start") {
      this.startSamples = message.samples;
    } else if (message.kind === "close") {
      this.open = false;
    } else if (message.kind === "stop") {
      this.stop();
    }
  }

  // A hard cut would click, so the next few samples fade out; all other buffered samples are dropped.
  stop() {
    const next = this.playing ? this.items.find((item) => item.samples) : undefined;
    const tail = next ? next.samples.subarray(next.position, next.position + FADE_SAMPLES) : [];
    this.fade = Array.from(tail, (sample, index) => (sample / 32768) * (1 - (index + 1) / FADE_SAMPLES));
    const { utterance = null, played = 0 } = this.current ?? {};
    this.items = [];
    this.bufferedSamples = 0;
    this.setIdle();
    this.post("stopped", { utterance, played });
  }

  setIdle() {
    this.playing = false;
    this.current = null;
  }

  process(_inputs, outputs) {
    const output = outputs[0][0];
    const faded = this.fade.splice(0, output.length);
    output.set(faded);
    let offset = faded.length;
    while (offset < output.length && this.items.length && this.mayPlay()) {
      const item = this.items[0];
      offset += item.samples ? this.play(item, output, offset) : this.finish(item);
    }
    // The rest of the quantum stays silent. Within an utterance this is an underrun, reported when audio continues.
    if (this.current && offset < output.length) this.current.missingSamples += output.length - offset;
    this.reportProgress();
    return this.open;
  }

  // Playback starts when enough is buffered, or when an utterance is complete and nothing more will come.
  mayPlay() {
    this.playing ||= this.bufferedSamples >= this.startSamples || this.items.some((item) => !item.samples);
    return this.playing;
  }

  play(item, output, offset) {
    if (!this.current) this.start(item.utterance);
    const { current } = this;
    if (current.missingSamples) {
      this.post("underrun", { utterance: item.utterance, samples: current.missingSamples });
      current.missingSamples = 0;
    }
    const count = Math.min(output.length - offset, item.samples.length - item.position);
    for (let index = 0; index < count; index += 1) {
      const sample = item.samples[item.position + index];
      output[offset + index] = sample / 32768;
      if (!current.audible && Math.abs(sample) >= AUDIBLE) this.reportAudible();
    }
    item.position += count;
    current.played += count;
    this.bufferedSamples -= count;
    if (item.position === item.samples.length) this.items.shift();
    return count;
  }

  start(utterance) {
    this.current = { utterance, played: 0, missingSamples: 0, audible: false };
    this.post("started", { utterance });
  }

  finish(item) {
    const played = this.current ? this.current.played : 0;
    this.items.shift();
    this.current = null;
    if (!this.items.length) this.setIdle();
    this.post("finished", { utterance: item.utterance, played });
    return 0;
  }

  reportAudible() {
    this.current.audible = true;
    this.post("audible", { utterance: this.current.utterance });
  }

  reportProgress() {
    this.quanta += 1;
    if (!this.current || this.quanta % PROGRESS_QUANTA) return;
    const { utterance, played, missingSamples } = this.current;
    this.post("progress", { utterance, played, underrun: missingSamples > 0 });
  }

  post(kind, message) {
    this.port.postMessage({ kind, clockMs: Date.now(), ...message });
  }
}

registerProcessor("packet-queue", PacketQueue);
