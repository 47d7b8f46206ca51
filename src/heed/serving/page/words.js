/* Segments, words and their alignment as offsets in source and translation, in UTF-16 code units. */

export const hasSegmenter = typeof Intl.Segmenter === "function";
const SEGMENTS = hasSegmenter ? new Intl.Segmenter(undefined, { granularity: "word" }) : { segment: bySpaces };

/* Fallback for browsers without Intl.Segmenter. */
function bySpaces(text) {
  return [...text.matchAll(/[\p{L}\p{M}\p{N}_]+|[^\p{L}\p{M}\p{N}_]+/gu)].map(({ 0: segment, index }) => {
    return { segment, index, isWordLike: /[\p{L}\p{N}]/u.test(segment) };
  });
}

/* The segments as offsets in both texts; the server counts in code points. */
export function segmentsOf({ segments }, source, target) {
  const [from, to] = [source, target].map((text) => {
    const starts = [0];
    for (const character of text) starts.push(starts.at(-1) + character.length);
    return ([start, end]) => [starts[start], starts[end]];
  });
  return segments.map((one) => ({ source: from(one.source), target: to(one.target) }));
}

/* The index of the segment at an offset of one side; else the next segment, or the last. */
export function segmentAt(segments, side, offset) {
  const found = segments.findIndex((segment) => offset <= segment[side][1]);
  return found < 0 ? segments.length - 1 : found;
}

/* The aligned spans of source and target tokens: [{source: [start, end], target: [start, end]}] */
export function pairsOf(details, source, target) {
  const from = spansOf(details.source_tokens, source);
  const to = spansOf(details.tokens, target);
  return details.alignment
    .filter(([one, other]) => from[one] && to[other])
    .map(([one, other]) => ({ source: from[one], target: to[other] }));
}

/* The span of each token in its text; null: white space, or part of a character. */
function spansOf(tokens, text) {
  let offset = 0;
  return tokens.map((token) => {
    const seen = token.trim();
    const at = seen ? text.indexOf(seen, offset) : -1;
    if (at < 0) return null;
    offset = at + seen.length;
    return [at, offset];
  });
}

/* Split a translation into words and the text between them. An elided word (qu', l') is separate where a token begins
   after its apostrophe. */
export function piecesOf(text, pairs) {
  const starts = new Set(pairs.map(({ target }) => target[0]));
  return [...SEGMENTS.segment(text)].flatMap(({ segment, index, isWordLike }) => {
    const last = index + segment.length;
    const after = [...segment.matchAll(/['’]/gu)].map((found) => index + found.index + 1);
    const ends = [...after.filter((at) => at < last && starts.has(at)), last];
    return ends.map((end, number) => ({ start: number ? ends[number - 1] : index, end, isWord: Boolean(isWordLike) }));
  });
}

/* The spans of the source words that a piece of the translation is aligned to. */
export function originsOf(piece, pairs, source) {
  const own = pairs.filter(({ target }) => target[0] < piece.end && target[1] > piece.start);
  return [...SEGMENTS.segment(source)]
    .map(({ segment, index }) => [index, index + segment.length])
    .filter(([start, end]) => own.some((pair) => pair.source[0] < end && pair.source[1] > start));
}

/* The shown translation with one segment replaced. */
export function withSegment(shown, number, translation, details) {
  const { source: from, target: to } = shown.segments[number];
  const grown = translation.length - (to[1] - to[0]);
  const moved = ([start, end], by) => [start + by, end + by];
  const after = ({ source, target }) => ({ source, target: moved(target, target[0] >= to[1] ? grown : 0) });
  const others = shown.pairs.filter(({ target }) => target[1] <= to[0] || target[0] >= to[1]).map(after);
  const own = pairsOf(details, shown.text.slice(...from), translation).map(({ source, target }) => ({
    source: moved(source, from[0]),
    target: moved(target, to[0]),
  }));
  const changed = { source: from, target: [to[0], to[1] + grown] };
  return {
    ...shown,
    translation: shown.translation.slice(0, to[0]) + translation + shown.translation.slice(to[1]),
    pairs: [...others, ...own],
    segments: shown.segments.map((one, at) => (at === number ? changed : after(one))),
  };
}
