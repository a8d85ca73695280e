// One session on the page: its text, its buttons, its drawings, and what a screen reader is told.
//
// A `Card` owns the elements made from the template and the session behind them, from its making to `remove`. It turns
// what the user does into calls of the session, and redraws on every frame in which something can have changed.

import { Chain } from "./chain.js";
import { text, translate } from "./language.js";
import { Level } from "./level.js";
import { Log } from "./log.js";
import { Session } from "./session.js";
import { Settings } from "./settings.js";
import { Sound } from "./sound.js";
import { VoiceChoice } from "./voices.js";
import { Wave } from "./wave.js";

const SETTLE_MS = 1200;

export class Card {
  constructor(number, { server, sound, model, shared, removed }) {
    this.number = number;
    this.removed = removed;
    this.root = document.querySelector("#card").content.firstElementChild.cloneNode(true);
    this.find = (name) => this.root.querySelector(`[data-part=${name}]`);
    this.session = new Session(server, sound, () => this.wake());
    this.voices = new VoiceChoice(this.root, { server, sound, model, shared, changed: () => this.configure() });
    this.settings = new Settings(this.root, model, () => this.configure());
    this.chain = new Chain(this.root);
    this.wave = new Wave(this.find("wave"));
    this.level = new Level(this.find("level"));
    this.log = new Log(this.find("log"));
    this.announced = "";
    this.awakeUntilMs = 0;
    this.frame = 0;
    this.listen();
    this.relabel();
    this.configure();
    new ResizeObserver(() => this.wake()).observe(this.root);
  }

  listen() {
    this.press("speak", () => this.speak());
    this.press("over", () => this.speakOver());
    this.press("stop", () => this.session.stop());
    this.press("remove", () => this.remove());
    this.find("text").addEventListener("input", () => this.wake());
    this.root.addEventListener("keydown", (event) => this.key(event));
  }

  // A button that has nothing to do keeps the focus, so it is not `disabled`; it only does nothing.
  press(name, action) {
    const button = this.find(name);
    button.addEventListener("click", () => button.getAttribute("aria-disabled") === "true" || action());
  }

  key(event) {
    const enter = event.key === "Enter" && (event.ctrlKey || event.metaKey);
    if (enter && event.shiftKey) this.speakOver();
    else if (enter) this.speak();
    else if (event.key === "Escape") this.session.stop();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // --- what the user does ---------------------------------------------------------------------------------------------

  get text() {
    return this.find("text").value.trim();
  }

  speak() {
    if (this.ready()) this.session.say(this.text);
  }

  speakOver() {
    if (this.ready()) this.session.sayInstead(this.text);
  }

  ready() {
    if (this.text && this.voices.settings() && Sound.allowed) return true;
    if (!this.text) this.find("text").focus();
    else this.voices.panel.open = true;
    return false;
  }

  configure() {
    const voice = this.voices.settings();
    if (voice) this.session.configure({ ...voice, ...this.settings.values() }, this.voices.name, this.settings.startMs);
  }

  remove() {
    this.session.close();
    cancelAnimationFrame(this.frame);
    this.root.remove();
    this.removed(this);
  }

  relabel() {
    translate(this.root);
    this.find("title").textContent = text("session", { number: this.number });
    this.voices.draw();
    this.settings.draw();
    this.wake();
  }

  // --- drawing --------------------------------------------------------------------------------------------------------

  wake() {
    this.awakeUntilMs = performance.now() + SETTLE_MS;
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    const now = performance.now();
    const { session } = this;
    const shown = session.shown;
    const moving = this.wave.draw(session.utterances, now);
    const dry = shown?.state === "speaking" && shown.playedAtMs === null && shown.played > 0;
    if (shown) this.level.note(now, session.waitingMs, dry);
    this.level.draw(now);
    this.chain.draw(shown);
    this.log.draw(session.utterances, now);
    this.buttons();
    this.tell(shown);
    if (moving || session.pending.length || now < this.awakeUntilMs) this.frame = requestAnimationFrame(() => this.draw());
  }

  buttons() {
    const busy = this.session.pending.length > 0;
    this.find("speak").textContent = text(busy ? "sayNext" : "speak");
    set(this.find("speak"), "aria-disabled", !this.text);
    set(this.find("over"), "aria-disabled", !busy || !this.text);
    set(this.find("stop"), "aria-disabled", !busy);
    this.find("hint").hidden = this.session.utterances.length > 0;
    this.find("buffer").textContent = (this.session.waitingMs / 1000).toFixed(2);
  }

  // The state in words, for everybody; it changes seldom, so that a screen reader may read it out.
  tell(shown) {
    const state = shown?.state ?? "idle";
    const { firstSound = 0 } = shown?.milestones() ?? {};
    const samples = state === "stopped" ? shown.played : (shown?.samples ?? 0);
    const seconds = (samples / (shown?.rateHz ?? 1)).toFixed(1);
    const words = text(`state_${state}`, { seconds, ms: firstSound.toFixed(0) });
    const fault = this.session.fault ? (FAULTS[this.session.fault]?.() ?? this.session.fault) : "";
    if (this.announced === words + fault) return;
    this.announced = words + fault;
    this.root.dataset.state = state;
    this.find("state").textContent = words;
    this.find("fault").textContent = fault;
    this.find("fault").hidden = !fault;
    this.describe(shown);
  }

  describe(shown) {
    const seconds = ((shown?.samples ?? 0) / (shown?.rateHz ?? 1)).toFixed(1);
    const played = ((shown?.played ?? 0) / (shown?.rateHz ?? 1)).toFixed(1);
    const packets = shown?.packets.length ?? 0;
    set(this.find("wave"), "aria-label", text("waveLabel", { packets, seconds, played }));
    set(this.find("level"), "aria-label", text("levelLabel", { seconds: (this.session.waitingMs / 1000).toFixed(1) }));
  }
}

const FAULTS = {
  connect: () => text("fault_connect"),
  lost: () => text("fault_lost"),
  key: () => text("fault_key"),
};

function set(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}
