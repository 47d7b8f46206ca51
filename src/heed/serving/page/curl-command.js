/* The section "Show as a curl command": the request that the page sends, as a command for a POSIX shell. */

const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/* path: of the route. fields: of its JSON body. */
export function showCurlCommand(path, fields, needsKey) {
  const lines = [
    `curl ${new URL(path, window.location.href).href}`,
    `-H ${quote("Content-Type: application/json")}`,
    ...(needsKey ? ['-H "Authorization: Bearer $HEED_KEY"'] : []),
    `-d ${quote(JSON.stringify(fields))}`,
  ];
  document.getElementById("curl-command").textContent = lines.join(" \\\n  ");
}
