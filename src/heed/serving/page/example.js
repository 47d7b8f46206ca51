/* Shows the request behind the page as a curl command. */

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function showExample(path, fields, needsKey) {
  const lines = [
    `curl ${new URL(path, window.location.href).href}`,
    `-H ${quoted("Content-Type: application/json")}`,
    ...(needsKey ? ['-H "Authorization: Bearer $HEED_KEY"'] : []),
    `-d ${quoted(JSON.stringify(fields))}`,
  ];
  document.getElementById("example").textContent = lines.join(" \\\n  ");
}
