// Signing in, for both pages. The key goes to the server once; the browser keeps a cookie it cannot read.

import { call } from "./api.js";
import { announce, byId, notice, show, write } from "./dom.js";
import { load, remove, save } from "./storage.js";

const PLACE = "signed-in";

/** Who is signed in: {id, role, name}; asks for a key until somebody is. */
export async function whoAmI(allowed) {
  // Asking the server without a cookie would be an error in the log of every first visit.
  let me = load(PLACE) ? await asked() : null;
  let problem = "";
  while (!me || !allowed.includes(me.role)) {
    if (me) problem = refusal(me, allowed);
    me = await form(problem);
    problem = "";
  }
  save(PLACE, true);
  show("sign-in", false);
  return me;
}

export async function signOut() {
  try {
    await call("DELETE", "v1/session");
  } catch (problem) {
    // The cookie is still good, and only the server can end it.
    if (!problem.signedOut) { notice(`Not signed out: ${problem.message}`, { kind: "problem" }); return; }
  }
  remove(PLACE);
  location.reload();
}

async function asked() {
  for (let wait = 1; ; wait = Math.min(20, wait * 2)) {
    try {
      return await call("GET", "v1/session");
    } catch (problem) {
      if (!problem.passing) return null;
      show("sign-in", true);
      write("sign-in-note", "The server cannot be reached. Trying again.");
      await new Promise((resolve) => { setTimeout(resolve, wait * 1000); });
    }
  }
}

function refusal(me, allowed) {
  return `That is a key for a${me.role === "client" ? "" : "n"} ${me.role}; this page needs a key for an ${allowed.join(" or an ")}.`;
}

function form(problem) {
  const place = byId("sign-in-form");
  const field = byId("sign-in-key");
  const offered = new URLSearchParams(location.hash.slice(1)).get("key");
  if (offered) {
    // A link may bring a key after the #, which is never sent; a person still presses the button.
    field.value = offered;
    history.replaceState(null, "", location.pathname);
  }
  show("sign-in", true);
  say(problem);
  (field.value ? byId("sign-in-button") : field).focus();
  return new Promise((resolve) => {
    place.onsubmit = async (event) => {
      event.preventDefault();
      const me = await exchange(field.value.trim());
      if (me) {
        field.value = "";
        resolve(me);
      }
    };
  });
}

async function exchange(key) {
  byId("sign-in-button").disabled = true;
  say("");
  try {
    return await call("POST", "v1/session", { body: { key } });
  } catch (problem) {
    say(problem.signedOut ? "That key is not known here, or it was revoked." : problem.message);
    return null;
  } finally {
    byId("sign-in-button").disabled = false;
  }
}

function say(sentence) {
  write("sign-in-note", sentence);
  byId("sign-in-key").setAttribute("aria-invalid", sentence ? "true" : "false");
  if (sentence) announce(sentence);
}
