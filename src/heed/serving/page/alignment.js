/* Segments (sentences), words and word alignment of a source text and its translation, as [start, end] offsets in
   UTF-16 code units. */

export const hasSegmenter = typeof Intl.Segmenter === "function";
const WORD_SEGMENTER = hasSegmenter
  ? new Intl.Segmenter(undefined, { granularity: "word" })
  : { segment: splitAtSpaces };

/* Fallback for browsers without Intl.Segmenter. */
function splitAtSpaces(text) {
  return [...text.matchAll(/[\p{L}\p{M}\p{N}_]+|[^\p{L}\p{M}\p{N}_]+/gu)].map(({ 0: segment, index }) => {
    return { segment, index, isWordLike: /[\p{L}\p{N}]/u.test(segment) };
  });
}

/* The segments in `details` of a response, whose offsets count code points, as
   [{source: [start, end], target: [start, end]}]. */
export function segmentSpans({ segments }, source, target) {
  const [toSourceSpan, toTargetSpan] = [source, target].map((text) => {
    const offsets = [0]; // of each code point
    for (const character of text) offsets.push(offsets.at(-1) + character.length);
    return ([start, end]) => [offsets[start], offsets[end]];
  });
  return segments.map((segment) => ({ source: toSourceSpan(segment.source), target: toTargetSpan(segment.target) }));
}

/* The index of the segment at an offset of one side, "source" or "target"; else of the next segment, or of the last. */
export function segmentIndexAt(segments, side, offset) {
  const index = segments.findIndex((segment) => offset <= segment[side][1]);
  return index < 0 ? segments.length - 1 : index;
}

/* The spans of each pair of aligned tokens: [{source: [start, end], target: [start, end]}] */
export function alignedSpans(details, source, target) {
  const sourceSpans = tokenSpans(details.source_tokens, source);
  const targetSpans = tokenSpans(details.tokens, target);
  return details.alignment
    .map(([sourceIndex, targetIndex]) => ({ source: sourceSpans[sourceIndex], target: targetSpans[targetIndex] }))
    .filter((pair) => pair.source && pair.target);
}

/* The span of each token in its text; null: white space, or part of a character. */
function tokenSpans(tokens, text) {
  let offset = 0;
  return tokens.map((token) => {
    const trimmed = token.trim();
    const start = trimmed ? text.indexOf(trimmed, offset) : -1;
    if (start < 0) return null;
    offset = start + trimmed.length;
    return [start, offset];
  });
}

/* Split a translation into words and the text between them: [{start, end, isWord}]. An elided word (qu', l') is
   separate where a token begins after its apostrophe. pairs: of alignedSpans. */
export function splitWords(text, pairs) {
  const tokenStarts = new Set(pairs.map(({ target }) => target[0]));
  return [...WORD_SEGMENTER.segment(text)].flatMap(({ segment, index, isWordLike }) => {
    const segmentEnd = index + segment.length;
    const elisions = [...segment.matchAll(/['’]/gu)].map((match) => index + match.index + 1);
    const ends = [...elisions.filter((offset) => offset < segmentEnd && tokenStarts.has(offset)), segmentEnd];
    return ends.map((end, part) => ({ start: part ? ends[part - 1] : index, end, isWord: Boolean(isWordLike) }));
  });
}

/* The spans of the source words that a word of the translation is aligned to. */
export function alignedSourceWords(word, pairs, source) {
  const aligned = pairs.filter(({ target }) => target[0] < word.end && target[1] > word.start);
  return [...WORD_SEGMENTER.segment(source)]
    .map(({ segment, index }) => [index, index + segment.length])
    .filter(([start, end]) => aligned.some((pair) => pair.source[0] < end && pair.source[1] > start));
}

/* A copy of `shown` (see main.js) in which one segment has another translation and the rest has moved accordingly. */
export function replaceSegment(shown, index, translation, details) {
  const { source: sourceSpan, target: targetSpan } = shown.segments[index];
  const growth = translation.length - (targetSpan[1] - targetSpan[0]);
  const shift = ([start, end], by) => [start + by, end + by];
  const shiftTarget = ({ source, target }) => {
    return { source, target: shift(target, target[0] >= targetSpan[1] ? growth : 0) };
  };
  const otherPairs = shown.pairs
    .filter(({ target }) => target[1] <= targetSpan[0] || target[0] >= targetSpan[1])
    .map(shiftTarget);
  const newPairs = alignedSpans(details, shown.text.slice(...sourceSpan), translation).map(({ source, target }) => ({
    source: shift(source, sourceSpan[0]),
    target: shift(target, targetSpan[0]),
  }));
  const replaced = { source: sourceSpan, target: [targetSpan[0], targetSpan[1] + growth] };
  return {
    ...shown,
    translation: shown.translation.slice(0, targetSpan[0]) + translation + shown.translation.slice(targetSpan[1]),
    pairs: [...otherPairs, ...newPairs],
    segments: shown.segments.map((segment, other) => (other === index ? replaced : shiftTarget(segment))),
  };
}
