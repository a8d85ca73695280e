// One utterance as the page knows it: what was asked, when what happened to it, and what of it was heard.
//
// An `Utterance` lives as long as its session's log shows it. Times are milliseconds of the page's clock; samples count
// from the utterance's start. The stages of docs/latency.md are derived here and nowhere else: the server's own come with
// the audio, those of the page are measured in it. Draws nothing.

const PEAK_SAMPLES = 480; // 20 ms at 24 kHz: one bar of the waveform

// In the order in which they follow one another; together they are the time from the request to the first sound.
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
const BEFORE_FIRST_CODE = ["connect", "input wait", "queue", "prefill", "first code"];

export class Utterance {
  constructor(id, text, voice) {
    this.id = id;
    this.text = text;
    this.voice = voice;
    this.number = null;
    this.requestId = null;
    this.state = "asked"; // asked, speaking, made, over, stopped, failed
    this.fault = "";
    this.notes = [];
    this.rateHz = 24000;
    this.askedMs = performance.now();
    this.sentMs = null;
    this.firstBytesMs = null;
    this.firstSoundMs = null;
    this.audibleMs = null;
    this.outputMs = null;
    this.server = {};
    this.packets = [];
    this.samples = 0;
    this.played = 0;
    this.playedAtMs = null; // when `played` was true; null while it stands still
    this.words = [];
    this.heardCharacters = null;
    this.heardError = 0;
    this.finishReason = "";
    this.underruns = 0;
    this.underrunMs = 0;
  }

  get pending() {
    return this.state === "asked" || this.state === "speaking" || this.state === "made";
  }

  // A packet landed; its peaks are kept, its samples are not.
  take(samples, nowMs) {
    this.firstBytesMs ??= nowMs;
    const peaks = [];
    for (let from = 0; from < samples.length; from += PEAK_SAMPLES) {
      let peak = 0;
      for (const sample of samples.subarray(from, from + PEAK_SAMPLES)) peak = Math.max(peak, Math.abs(sample));
      peaks.push(peak / 32768);
    }
    this.packets.push({ landedMs: nowMs, first: this.samples, samples: samples.length, peaks });
    this.samples += samples.length;
  }

  // What was played by `nowMs`, between two words of the audio thread.
  playedBy(nowMs) {
    if (this.playedAtMs === null) return this.played;
    return Math.min(this.samples, this.played + Math.max(0, nowMs - this.playedAtMs) * (this.rateHz / 1000));
  }

  // Milliseconds of each stage that is known, in order. What the server did not see is the way there and back.
  stages() {
    const known = new Map();
    if (this.sentMs !== null) known.set("connect", this.sentMs - this.askedMs);
    const spent = this.server.stages_ms ?? {};
    for (const [name, milliseconds] of Object.entries(spent)) known.set(name, milliseconds);
    const packetMs = this.server.first_packet_ms;
    if (this.firstBytesMs !== null && packetMs !== undefined) {
      known.set("transport", Math.max(0, this.firstBytesMs - this.sentMs - packetMs));
    }
    if (this.firstSoundMs !== null) known.set("playout", Math.max(0, this.firstSoundMs - this.firstBytesMs));
    return STAGES.filter((name) => known.has(name)).map((name) => ({ name, ms: known.get(name) }));
  }

  // The instants that people ask for, in milliseconds since the request.
  milestones() {
    const stages = new Map(this.stages().map(({ name, ms }) => [name, ms]));
    const sum = (names) => names.reduce((total, name) => total + (stages.get(name) ?? 0), 0);
    const connect = stages.get("connect") ?? 0;
    return {
      inputWait: stages.get("input wait"),
      firstCode: stages.has("first code") ? sum(BEFORE_FIRST_CODE) : undefined,
      firstPacket: this.server.first_packet_ms === undefined ? undefined : connect + this.server.first_packet_ms,
      firstSound: this.firstSoundMs === null ? undefined : this.firstSoundMs - this.askedMs,
    };
  }

  // What the server is told about hearing it; null while nothing was heard.
  report() {
    if (this.firstSoundMs === null) return null;
    const since = (ms) => Math.max(0, Math.round(1000 * (ms - this.sentMs)) / 1000);
    return {
      first_bytes_ms: since(this.firstBytesMs),
      first_sound_ms: since(this.firstSoundMs),
      ...(this.audibleMs === null ? {} : { first_audible_ms: since(this.audibleMs) }),
      ...(this.outputMs === null ? {} : { output_ms: Math.round(10 * this.outputMs) / 10 }),
      underruns: this.underruns,
      underrun_ms: Math.round(this.underrunMs),
    };
  }

  // How much of the text was heard, in characters: exact where word times are known, else what the server said, else
  // all or nothing.
  charactersHeardBy(nowMs) {
    if (this.state === "stopped" && this.heardCharacters !== null) return this.heardCharacters;
    if (this.state === "over") return this.text.length;
    const second = this.playedBy(nowMs) / this.rateHz;
    return this.words.reduce((end, word) => (word.start_s <= second && second > 0 ? word.text_end : end), 0);
  }
}
