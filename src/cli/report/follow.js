// Loads a page that is served again when there is a newer one. What was chosen in it stays.
"use strict";
(() => {
  const own = document.documentElement.dataset.version;
  const look = async () => {
    try {
      const answer = await fetch(`version${location.search}`, { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== own && !document.hidden) {
        location.reload();
        return;
      }
    } catch { /* The server has ended, or is busy: the page stays. */ }
    setTimeout(look, 2000);
  };
  setTimeout(look, 2000);
})();
