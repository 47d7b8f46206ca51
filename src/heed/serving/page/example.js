/* The request that would give the translation on the page, as a command. */

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function showExample(q, { source, target }, needsKey) {
  const lines = [
    `curl ${new URL("translate", window.location.href).href}`,
    `-H ${quoted("Content-Type: application/json")}`,
    ...(needsKey ? ['-H "Authorization: Bearer $HEED_KEY"'] : []),
    `-d ${quoted(JSON.stringify({ q: q || "A dog runs.", source, target }))}`,
  ];
  document.getElementById("example").textContent = lines.join(" \\\n  ");
}
