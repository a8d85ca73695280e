// The user interface of one session: text, buttons, voice and settings panels, drawings, and status for screen readers.
//
// A `Card` owns the elements cloned from the template and the session behind them, until `remove`. User input becomes calls
// of the session. It redraws once per animation frame while something may be changing.

import { Chain } from "./chain.js";
import { text, translate } from "./language.js";
import { Level } from "./level.js";
import { Log } from "./log.js";
import { Session } from "./session.js";
import { Settings } from "./settings.js";
import { Sound } from "./sound.js";
import { VoiceChoice } from "./voices.js";
import { Wave } from "./wave.js";

const REDRAW_MS = 1200; // keep redrawing this long after the last change, for animations

export class Card {
  constructor(number, { server, sound, model, shared, onRemove }) {
    this.number = number;
    this.modelId = model.id;
    this.onRemove = onRemove;
    this.root = document.querySelector("#card").content.firstElementChild.cloneNode(true);
    this.find = (name) => this.root.querySelector(`[data-part=${name}]`);
    this.session = new Session(server, sound, () => this.requestRedraw());
    this.voices = new VoiceChoice(this.root, { server, sound, model, shared, onChange: () => this.configure() });
    this.settings = new Settings(this.root, model, () => this.configure());
    this.chain = new Chain(this.root);
    this.wave = new Wave(this.find("wave"));
    this.level = new Level(this.find("level"));
    this.log = new Log(this.find("log"));
    this.announced = "";
    this.redrawUntilMs = 0;
    this.frame = 0;
    this.addListeners();
    this.relabel();
    this.configure();
    new ResizeObserver(() => this.requestRedraw()).observe(this.root);
  }

  addListeners() {
    this.onPress("speak", () => this.speak());
    this.onPress("interrupt", () => this.interrupt());
    this.onPress("stop", () => this.session.stop());
    this.onPress("remove", () => this.remove());
    this.find("text").addEventListener("input", () => this.requestRedraw());
    this.root.addEventListener("keydown", (event) => this.onKey(event));
  }

  // Inactive buttons use `aria-disabled` instead of `disabled`, so that they keep the keyboard focus.
  onPress(name, action) {
    const button = this.find(name);
    button.addEventListener("click", () => button.getAttribute("aria-disabled") === "true" || action());
  }

  onKey(event) {
    const enter = event.key === "Enter" && (event.ctrlKey || event.metaKey);
    if (enter && event.shiftKey) this.interrupt();
    else if (enter) this.speak();
    else if (event.key === "Escape") this.session.stop();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // --- user actions ---------------------------------------------------------------------------------------------------

  get text() {
    return this.find("text").value.trim();
  }

  speak() {
    if (this.checkInput()) this.session.speak(this.text);
  }

  interrupt() {
    if (this.checkInput()) this.session.interrupt(this.text);
  }

  // Whether there is a text and a voice. If not, direct the user to what is missing.
  checkInput() {
    if (this.text && this.voices.settings() && Sound.allowed) return true;
    if (!this.text) this.find("text").focus();
    else this.voices.panel.open = true;
    return false;
  }

  configure() {
    const voice = this.voices.settings();
    if (!voice) return;
    const config = { model: this.modelId, ...voice, ...this.settings.values() };
    this.session.configure(config, this.voices.name, this.settings.startMs);
  }

  remove() {
    this.session.close();
    cancelAnimationFrame(this.frame);
    this.root.remove();
    this.onRemove(this);
  }

  // Update all texts after a change of language.
  relabel() {
    translate(this.root);
    this.find("title").textContent = text("session", { number: this.number });
    this.voices.draw();
    this.settings.draw();
    this.requestRedraw();
  }

  // --- drawing --------------------------------------------------------------------------------------------------------

  requestRedraw() {
    this.redrawUntilMs = performance.now() + REDRAW_MS;
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    const now = performance.now();
    const { session } = this;
    const shown = session.shown;
    const moving = this.wave.draw(session.utterances, now);
    const underrun = shown?.state === "speaking" && shown.playedAtMs === null && shown.played > 0;
    if (shown) this.level.add(now, session.bufferedMs, underrun);
    this.level.draw(now);
    this.chain.draw(shown);
    this.log.draw(session.utterances, now);
    this.drawButtons();
    this.drawStatus(shown);
    if (moving || session.pending.length || now < this.redrawUntilMs) {
      this.frame = requestAnimationFrame(() => this.draw());
    }
  }

  drawButtons() {
    const busy = this.session.pending.length > 0;
    this.find("speak").textContent = text(busy ? "speakNext" : "speak");
    setAttribute(this.find("speak"), "aria-disabled", !this.text);
    setAttribute(this.find("interrupt"), "aria-disabled", !busy || !this.text);
    setAttribute(this.find("stop"), "aria-disabled", !busy);
    this.find("hint").hidden = this.session.utterances.length > 0;
    this.find("buffer").textContent = (this.session.bufferedMs / 1000).toFixed(2);
  }

  // Status and error as text. Updated only when the state changes, because screen readers announce every update.
  drawStatus(shown) {
    const state = shown?.state ?? "idle";
    const { firstSound = 0 } = shown?.milestones() ?? {};
    const samples = state === "stopped" ? shown.played : (shown?.samples ?? 0);
    const seconds = (samples / (shown?.rateHz ?? 1)).toFixed(1);
    const status = text(`state_${state}`, { seconds, ms: firstSound.toFixed(0) });
    const error = this.session.error ? (ERRORS[this.session.error]?.() ?? this.session.error) : "";
    if (this.announced === status + error) return;
    this.announced = status + error;
    this.root.dataset.state = state;
    this.find("state").textContent = status;
    this.find("error").textContent = error;
    this.find("error").hidden = !error;
    this.labelDrawings(shown);
  }

  labelDrawings(shown) {
    const seconds = ((shown?.samples ?? 0) / (shown?.rateHz ?? 1)).toFixed(1);
    const played = ((shown?.played ?? 0) / (shown?.rateHz ?? 1)).toFixed(1);
    const packets = shown?.packets.length ?? 0;
    const buffered = (this.session.bufferedMs / 1000).toFixed(1);
    setAttribute(this.find("wave"), "aria-label", text("waveLabel", { packets, seconds, played }));
    setAttribute(this.find("level"), "aria-label", text("levelLabel", { seconds: buffered }));
  }
}

const ERRORS = {
  connect: () => text("error_connect"),
  lost: () => text("error_lost"),
  key: () => text("error_key"),
};

function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}
