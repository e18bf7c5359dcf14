// A question before something that matters, with a place for the reason.

import { byId, write } from "./dom.js";

/** The reason (maybe empty) when confirmed, null when not. */
export function confirm({ title, text, go, dangerous = false }) {
  const dialog = byId("confirm");
  write("confirm-title", title);
  write("confirm-text", text);
  write("confirm-go", go);
  byId("confirm-go").classList.toggle("danger", dangerous);
  byId("confirm-reason").value = "";
  dialog.returnValue = "cancel";
  dialog.showModal();
  byId("confirm-reason").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "go" ? byId("confirm-reason").value.trim() : null);
    }, { once: true });
  });
}
