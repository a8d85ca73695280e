// One session: its connection, its queue on the audio thread, and the utterances that went through both.
//
// Owns them from its making to `close`. It decides what is said when: text goes out in the order in which it was asked
// for, a stop silences the queue before the server hears of it, and what comes late is dropped. Calls `changed` whenever
// something did; draws nothing.

import { Link } from "./link.js";
import { Utterance } from "./utterance.js";

const ACKNOWLEDGE_MS = 400;
const PREPARE_MS = 250;

let ids = 0;

export class Session {
  // `server`: `Server`; `sound`: `Sound`.
  constructor(server, sound, changed) {
    this.server = server;
    this.sound = sound;
    this.changed = changed;
    this.utterances = [];
    this.config = {};
    this.startMs = 0;
    this.voice = "";
    this.link = null;
    this.player = null;
    this.configured = false;
    this.turn = Promise.resolve();
    this.stops = 0;
    this.fault = "";
    this.acknowledgedMs = 0;
    this.preparing = 0;
  }

  // --- what the user does ---------------------------------------------------------------------------------------------

  // How what follows is spoken. The server hears of it soon, so that it has read a recording before it is to speak.
  configure(config, voice, startMs) {
    this.config = config;
    this.voice = voice;
    this.startMs = startMs;
    this.configured = false;
    clearTimeout(this.preparing);
    this.preparing = setTimeout(() => this.prepare(), PREPARE_MS);
  }

  // Have `text` spoken after all that was asked for before.
  say(text) {
    const utterance = new Utterance((ids += 1), text, this.voice);
    const { stops } = this;
    this.fault = "";
    this.utterances.push(utterance);
    this.changed();
    this.turn = this.turn.then(() => this.send(utterance, stops));
    return utterance;
  }

  // Have `text` spoken instead of all that plays or waits.
  async sayInstead(text) {
    await this.stop();
    return this.say(text);
  }

  async stop() {
    const pending = this.pending;
    if (!pending.length) return;
    this.stops += 1;
    const link = this.link?.open ? this.link : null;
    link?.mute();
    for (const utterance of pending) this.cutOff(utterance);
    const told = this.tellStop(link, pending);
    this.turn = Promise.all([this.turn, told]);
    this.changed();
    await told;
    this.changed();
  }

  // What comes next must not overtake this.
  async tellStop(link, stopped) {
    const heard = await this.player?.stop();
    const utterance = stopped.find((each) => each.id === heard?.utterance);
    if (utterance) utterance.played = heard.played;
    link?.cancel(utterance?.number ?? null, utterance?.played ?? 0);
    for (const each of stopped) this.report(each);
  }

  close() {
    clearTimeout(this.preparing);
    this.stops += 1;
    this.link?.close();
    this.player?.close();
    this.link = this.player = null;
  }

  get pending() {
    return this.utterances.filter((utterance) => utterance.pending);
  }

  // The one that is heard, or the last one that was.
  get shown() {
    return this.pending[0] ?? this.utterances.at(-1) ?? null;
  }

  get waitingMs() {
    const now = performance.now();
    return this.pending.reduce((sum, each) => sum + (1000 * (each.samples - each.playedBy(now))) / each.rateHz, 0);
  }

  // --- what goes out --------------------------------------------------------------------------------------------------

  async send(utterance, stops) {
    try {
      this.player ??= await this.sound.player((message) => this.heard(message));
      await this.sound.context();
      await this.connect();
    } catch (error) {
      this.fail(utterance, this.server.needsKey ? "key" : "connect", error);
      return;
    }
    if (stops !== this.stops) return;
    this.introduce();
    this.player.startAfter(this.startMs);
    utterance.sentMs = performance.now();
    utterance.number = this.link.say(utterance.text);
  }

  async connect() {
    if (!this.link || this.link.over) {
      this.link = new Link(this.server.key, this);
      this.configured = false;
    }
    await this.link.opened;
  }

  async prepare() {
    try {
      await this.connect();
    } catch {
      return; // whoever speaks next is told
    }
    this.introduce();
  }

  introduce() {
    if (!this.configured) this.link.configure(this.config);
    this.configured = true;
  }

  // --- what the server says -------------------------------------------------------------------------------------------

  started(number, message) {
    const utterance = this.numbered(number);
    if (!utterance?.pending) return;
    utterance.state = "speaking";
    utterance.rateHz = message.sample_rate;
    utterance.requestId = message.request_id;
    utterance.notes = message.notes;
    utterance.server = message.timing[0] ?? {};
    this.changed();
  }

  audio(number, samples) {
    const utterance = this.numbered(number);
    if (!utterance?.pending) return;
    utterance.take(samples, performance.now());
    this.player.put(utterance.id, samples);
    this.changed();
  }

  words(number, words) {
    this.numbered(number)?.words.push(...words);
  }

  made(number, message) {
    const utterance = this.numbered(number);
    if (!utterance?.pending) return;
    utterance.state = "made";
    utterance.finishReason = message.finish_reason;
    this.player.end(utterance.id);
    this.changed();
  }

  cancelled(reports) {
    for (const report of reports) {
      const utterance = this.numbered(report.utterance_index);
      if (!utterance) continue;
      utterance.heardCharacters = report.heard_chars;
      utterance.heardError = report.heard_error_chars;
    }
    this.changed();
  }

  refused(number, error) {
    if (error.code === "idle_timeout") return;
    if (number !== null) {
      const utterance = this.numbered(number);
      if (utterance?.pending) this.fail(utterance, "server", error);
      return;
    }
    // Settings or a text were refused: what was to be spoken with them must not be spoken with others.
    this.configured = false;
    const asked = this.pending.filter(({ state }) => state === "asked");
    for (const utterance of asked) this.fail(utterance, "server", error);
    if (asked.length && !this.pending.length) {
      this.link.mute();
      this.link.cancel(null, 0);
    }
    this.fault = error.message;
    this.changed();
  }

  closed(link, reason) {
    if (link !== this.link) return;
    for (const utterance of this.pending) {
      if (utterance.number !== null && utterance.state !== "made") this.fail(utterance, "lost", new Error(reason));
    }
    for (const utterance of this.utterances) utterance.number = null;
    this.changed();
  }

  // --- what the audio thread says -------------------------------------------------------------------------------------

  heard(message) {
    const utterance = this.utterances.find((each) => each.id === message.utterance);
    if (!utterance?.pending) return;
    if (message.kind === "began") {
      utterance.firstSoundMs = utterance.playedAtMs = message.atMs;
      utterance.outputMs = this.player.outputMs;
      this.report(utterance);
    } else if (message.kind === "audible") {
      utterance.audibleMs = message.atMs;
    } else if (message.kind === "level") {
      utterance.played = message.played;
      utterance.playedAtMs = message.standing ? null : message.atMs;
      this.acknowledge(utterance);
    } else if (message.kind === "dry") {
      utterance.underruns += 1;
      utterance.underrunMs += (1000 * message.samples) / utterance.rateHz;
    } else if (message.kind === "over") {
      this.over(utterance, message);
    }
    this.changed();
  }

  over(utterance, { played }) {
    utterance.played = played;
    utterance.playedAtMs = null;
    utterance.state = "over";
    if (utterance.number !== null) this.link?.acknowledge(utterance.number, played);
    this.report(utterance);
  }

  acknowledge(utterance) {
    const now = performance.now();
    if (now - this.acknowledgedMs < ACKNOWLEDGE_MS || utterance.number === null) return;
    this.acknowledgedMs = now;
    this.link?.acknowledge(utterance.number, utterance.played);
  }

  // --- ends -----------------------------------------------------------------------------------------------------------

  numbered(number) {
    return this.utterances.find((utterance) => utterance.number === number && number !== undefined);
  }

  cutOff(utterance) {
    utterance.played = utterance.playedBy(performance.now());
    utterance.playedAtMs = null;
    utterance.state = "stopped";
  }

  fail(utterance, why, error) {
    this.cutOff(utterance);
    utterance.state = "failed";
    utterance.fault = why;
    this.fault = why === "server" ? error.message : why;
    this.player?.end(utterance.id);
    this.changed();
  }

  report(utterance) {
    const figures = utterance.report();
    if (figures && utterance.requestId) this.server.reportPlayout(utterance.requestId, figures);
  }
}
