// One utterance as the page sees it: text, state, timestamps, received packets, and playback position.
//
// An `Utterance` lives as long as its session. Times are milliseconds of the page's clock (`performance.now()`); samples
// count from the start of the utterance. The stages of docs/latency.md are computed here: the server sends its own with the
// audio, the page measures the others.

const PEAK_SAMPLES = 480; // 20 ms at 24 kHz: one bar of the waveform

// In chronological order; they sum to the time from the request to the first sound.
export const STAGES = [
  "connect",
  "input wait",
  "queue",
  "prefill",
  "first code",
  "first frame",
  "packet fill",
  "codec",
  "transport",
  "playout",
];
const UP_TO_FIRST_CODE = ["connect", "input wait", "queue", "prefill", "first code"];

export class Utterance {
  constructor(id, text, voice) {
    this.id = id;
    this.text = text;
    this.voice = voice;
    this.number = null; // its index on the current connection
    this.requestId = null;
    this.state = "requested"; // requested, speaking, generated, finished, stopped, failed
    this.notes = [];
    this.rateHz = 24000;
    this.requestedMs = performance.now();
    this.sentMs = null;
    this.firstBytesMs = null;
    this.firstSoundMs = null;
    this.audibleMs = null;
    this.outputMs = null;
    this.server = {}; // timing reported by the server
    this.packets = [];
    this.samples = 0;
    this.played = 0;
    this.playedAtMs = null; // time at which `played` was measured; null while nothing is playing
    this.words = [];
    this.heardCharacters = null;
    this.heardError = 0;
    this.finishReason = "";
    this.underruns = 0;
    this.underrunMs = 0;
  }

  get pending() {
    return this.state === "requested" || this.state === "speaking" || this.state === "generated";
  }

  // Add a received packet. Only its peaks are kept, for the waveform.
  addPacket(samples, nowMs) {
    this.firstBytesMs ??= nowMs;
    const peaks = [];
    for (let start = 0; start < samples.length; start += PEAK_SAMPLES) {
      let peak = 0;
      for (const sample of samples.subarray(start, start + PEAK_SAMPLES)) peak = Math.max(peak, Math.abs(sample));
      peaks.push(peak / 32768);
    }
    this.packets.push({ receivedMs: nowMs, first: this.samples, samples: samples.length, peaks });
    this.samples += samples.length;
  }

  // Samples played at `nowMs`, extrapolated from the last progress message of the audio thread.
  playedAt(nowMs) {
    if (this.playedAtMs === null) return this.played;
    return Math.min(this.samples, this.played + Math.max(0, nowMs - this.playedAtMs) * (this.rateHz / 1000));
  }

  // The known stages in order, in milliseconds. Transport is the wait for the first bytes minus the server's own time.
  stages() {
    const known = new Map();
    if (this.sentMs !== null) known.set("connect", this.sentMs - this.requestedMs);
    for (const [name, milliseconds] of Object.entries(this.server.stages_ms ?? {})) known.set(name, milliseconds);
    const packetMs = this.server.first_packet_ms;
    if (this.firstBytesMs !== null && packetMs !== undefined) {
      known.set("transport", Math.max(0, this.firstBytesMs - this.sentMs - packetMs));
    }
    if (this.firstSoundMs !== null) known.set("playout", Math.max(0, this.firstSoundMs - this.firstBytesMs));
    return STAGES.filter((name) => known.has(name)).map((name) => ({ name, ms: known.get(name) }));
  }

  // The main latency figures, in milliseconds since the request.
  milestones() {
    const stages = new Map(this.stages().map(({ name, ms }) => [name, ms]));
    const sum = (names) => names.reduce((total, name) => total + (stages.get(name) ?? 0), 0);
    const connect = stages.get("connect") ?? 0;
    return {
      inputWait: stages.get("input wait"),
      firstCode: stages.has("first code") ? sum(UP_TO_FIRST_CODE) : undefined,
      firstPacket: this.server.first_packet_ms === undefined ? undefined : connect + this.server.first_packet_ms,
      firstSound: this.firstSoundMs === null ? undefined : this.firstSoundMs - this.requestedMs,
    };
  }

  // The playback report for the server, with times since the text was sent; null before the first sound.
  playbackReport() {
    if (this.firstSoundMs === null) return null;
    const sinceSent = (ms) => Math.max(0, Math.round(1000 * (ms - this.sentMs)) / 1000);
    return {
      first_bytes_ms: sinceSent(this.firstBytesMs),
      first_sound_ms: sinceSent(this.firstSoundMs),
      ...(this.audibleMs === null ? {} : { first_audible_ms: sinceSent(this.audibleMs) }),
      ...(this.outputMs === null ? {} : { output_ms: Math.round(10 * this.outputMs) / 10 }),
      underruns: this.underruns,
      underrun_ms: Math.round(this.underrunMs),
    };
  }

  // Characters of the text heard by `nowMs`: for a stopped utterance as reported by the server, while it plays from the word
  // timestamps (0 without them).
  charactersHeardAt(nowMs) {
    if (this.state === "stopped" && this.heardCharacters !== null) return this.heardCharacters;
    if (this.state === "finished") return this.text.length;
    const seconds = this.playedAt(nowMs) / this.rateHz;
    return this.words.reduce((end, word) => (word.start_s <= seconds && seconds > 0 ? word.text_end : end), 0);
  }
}
