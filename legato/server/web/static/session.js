// One session: its WebSocket, its playback queue, and its utterances.
//
// A `Session` owns them until `close`. Texts are sent in the order in which they were requested. A stop silences the queue
// before the server is notified, and audio that arrives later is dropped. It calls `onChange` after every state change.

import { Link } from "./link.js";
import { Utterance } from "./utterance.js";

const ACKNOWLEDGE_MS = 400;
const CONFIGURE_DELAY_MS = 250;

let lastId = 0;

export class Session {
  // `server`: `Server`; `sound`: `Sound`.
  constructor(server, sound, onChange) {
    this.server = server;
    this.sound = sound;
    this.onChange = onChange;
    this.utterances = [];
    this.config = {};
    this.startMs = 0;
    this.voice = "";
    this.link = null;
    this.player = null;
    this.configured = false; // whether the server has the current settings
    this.sending = Promise.resolve(); // chain of sends and stops: each starts after the one before
    this.stopCount = 0;
    this.error = "";
    this.acknowledgedMs = 0;
    this.configureTimer = 0;
  }

  // --- user actions ---------------------------------------------------------------------------------------------------

  // Set the options of the next utterances. They are sent after a short delay, so that the server has loaded a reference
  // recording before the next text arrives.
  configure(config, voice, startMs) {
    this.config = config;
    this.voice = voice;
    this.startMs = startMs;
    this.configured = false;
    clearTimeout(this.configureTimer);
    this.configureTimer = setTimeout(() => this.connectAndConfigure(), CONFIGURE_DELAY_MS);
  }

  // Speak `text` after everything requested before.
  speak(text) {
    const utterance = new Utterance((lastId += 1), text, this.voice);
    const { stopCount } = this;
    this.error = "";
    this.utterances.push(utterance);
    this.onChange();
    this.sending = this.sending.then(() => this.send(utterance, stopCount));
    return utterance;
  }

  // Stop everything that is playing or queued, then speak `text`.
  async interrupt(text) {
    await this.stop();
    return this.speak(text);
  }

  async stop() {
    const pending = this.pending;
    if (!pending.length) return;
    this.stopCount += 1;
    const link = this.link?.isOpen ? this.link : null;
    link?.mute();
    for (const utterance of pending) this.markStopped(utterance);
    const cancelled = this.stopPlayback(link, pending);
    this.sending = Promise.all([this.sending, cancelled]);
    this.onChange();
    await cancelled;
    this.onChange();
  }

  // Empty the queue, then send the cancel with the number of samples that were played.
  async stopPlayback(link, stopped) {
    const position = await this.player?.stop();
    const utterance = stopped.find((candidate) => candidate.id === position?.utterance);
    if (utterance) utterance.played = position.played;
    link?.cancel(utterance?.number ?? null, utterance?.played ?? 0);
    for (const each of stopped) this.reportPlayback(each);
  }

  close() {
    clearTimeout(this.configureTimer);
    this.stopCount += 1;
    this.link?.close();
    this.player?.close();
    this.link = this.player = null;
  }

  get pending() {
    return this.utterances.filter((utterance) => utterance.pending);
  }

  // The utterance being played, else the last one.
  get shown() {
    return this.pending[0] ?? this.utterances.at(-1) ?? null;
  }

  get bufferedMs() {
    const now = performance.now();
    return this.pending.reduce((sum, each) => sum + (1000 * (each.samples - each.playedAt(now))) / each.rateHz, 0);
  }

  // --- to the server --------------------------------------------------------------------------------------------------

  async send(utterance, stopCount) {
    try {
      this.player ??= await this.sound.player((message) => this.onPlayback(message));
      await this.sound.context();
      await this.connect();
    } catch (error) {
      this.fail(utterance, this.server.needsKey ? "key" : "connect", error);
      return;
    }
    if (stopCount !== this.stopCount) return; // stopped while connecting
    this.sendConfig();
    this.player.setStartBuffer(this.startMs);
    utterance.sentMs = performance.now();
    utterance.number = this.link.speak(utterance.text);
  }

  async connect() {
    if (!this.link || this.link.isClosed) {
      this.link = new Link(this.server.key, this);
      this.configured = false;
    }
    await this.link.opened;
  }

  async connectAndConfigure() {
    try {
      await this.connect();
    } catch {
      return; // the next utterance fails with this error and shows it
    }
    this.sendConfig();
  }

  sendConfig() {
    if (!this.configured) this.link.configure(this.config);
    this.configured = true;
  }

  // --- from the server ------------------------------------------------------------------------------------------------

  onAudioStart(number, message) {
    const utterance = this.byNumber(number);
    if (!utterance?.pending) return;
    utterance.state = "speaking";
    utterance.rateHz = message.sample_rate;
    utterance.requestId = message.request_id;
    utterance.notes = message.notes;
    utterance.server = message.timing[0] ?? {};
    this.onChange();
  }

  onAudio(number, samples) {
    const utterance = this.byNumber(number);
    if (!utterance?.pending) return;
    utterance.addPacket(samples, performance.now());
    this.player.put(utterance.id, samples);
    this.onChange();
  }

  onWords(number, words) {
    this.byNumber(number)?.words.push(...words);
  }

  onAudioEnd(number, message) {
    const utterance = this.byNumber(number);
    if (!utterance?.pending) return;
    utterance.state = "generated";
    utterance.finishReason = message.finish_reason;
    this.player.end(utterance.id);
    this.onChange();
  }

  onCancelled(reports) {
    for (const report of reports) {
      const utterance = this.byNumber(report.utterance_index);
      if (!utterance) continue;
      utterance.heardCharacters = report.heard_chars;
      utterance.heardError = report.heard_error_chars;
    }
    this.onChange();
  }

  onError(number, error) {
    if (error.code === "idle_timeout") return;
    if (number !== null) {
      const utterance = this.byNumber(number);
      if (utterance?.pending) this.fail(utterance, "server", error);
      return;
    }
    // The settings or a text were rejected. Utterances that wait must not be spoken with older settings: cancel them.
    this.configured = false;
    const requested = this.pending.filter(({ state }) => state === "requested");
    for (const utterance of requested) this.fail(utterance, "server", error);
    if (requested.length && !this.pending.length) {
      this.link.mute();
      this.link.cancel(null, 0);
    }
    this.error = error.message;
    this.onChange();
  }

  onClosed(link, reason) {
    if (link !== this.link) return;
    for (const utterance of this.pending) {
      if (utterance.number !== null && utterance.state !== "generated") this.fail(utterance, "lost", new Error(reason));
    }
    for (const utterance of this.utterances) utterance.number = null;
    this.onChange();
  }

  // --- from the audio thread ------------------------------------------------------------------------------------------

  onPlayback(message) {
    const utterance = this.utterances.find((each) => each.id === message.utterance);
    if (!utterance?.pending) return;
    if (message.kind === "started") {
      utterance.firstSoundMs = utterance.playedAtMs = message.timeMs;
      utterance.outputMs = this.player.outputMs;
      this.reportPlayback(utterance);
    } else if (message.kind === "audible") {
      utterance.audibleMs = message.timeMs;
    } else if (message.kind === "progress") {
      utterance.played = message.played;
      utterance.playedAtMs = message.underrun ? null : message.timeMs;
      this.acknowledge(utterance);
    } else if (message.kind === "underrun") {
      utterance.underruns += 1;
      utterance.underrunMs += (1000 * message.samples) / utterance.rateHz;
    } else if (message.kind === "finished") {
      this.finish(utterance, message);
    }
    this.onChange();
  }

  finish(utterance, { played }) {
    utterance.played = played;
    utterance.playedAtMs = null;
    utterance.state = "finished";
    if (utterance.number !== null) this.link?.acknowledge(utterance.number, played);
    this.reportPlayback(utterance);
  }

  acknowledge(utterance) {
    const now = performance.now();
    if (now - this.acknowledgedMs < ACKNOWLEDGE_MS || utterance.number === null) return;
    this.acknowledgedMs = now;
    this.link?.acknowledge(utterance.number, utterance.played);
  }

  // --- utterances -----------------------------------------------------------------------------------------------------

  byNumber(number) {
    return this.utterances.find((utterance) => utterance.number === number && number !== undefined);
  }

  markStopped(utterance) {
    utterance.played = utterance.playedAt(performance.now());
    utterance.playedAtMs = null;
    utterance.state = "stopped";
  }

  // `reason`: "server" (show the server's message), or the key of an `error_...` text.
  fail(utterance, reason, error) {
    this.markStopped(utterance);
    utterance.state = "failed";
    this.error = reason === "server" ? error.message : reason;
    this.player?.end(utterance.id);
    this.onChange();
  }

  reportPlayback(utterance) {
    const report = utterance.playbackReport();
    if (report && utterance.requestId) this.server.reportPlayback(utterance.requestId, report);
  }
}
