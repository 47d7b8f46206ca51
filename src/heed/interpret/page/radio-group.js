/* Rows of radio buttons, to select a kind of attention, a layer, a head or a token. */

let radioGroups = 0; // created so far, for unique names

/* options: [{value, content, note, disabled, label, title}]; label: for screen readers. onChange: given a value. */
function radioGroup(legend, options, selected, onChange) {
  const name = `radio-group-${radioGroups++}`;
  const buttons = options.map((option) => {
    const input = make("input", {
      type: "radio",
      name,
      value: option.value,
      disabled: option.disabled,
      "aria-label": option.label,
      change: () => onChange(option.value),
    });
    input.checked = option.value === selected;
    const note = option.note ? make("small", {}, option.note) : null;
    return make(
      "label",
      { class: "radio", title: option.title },
      input,
      make("span", { class: "radio-label" }, option.content, note),
    );
  });
  return make("fieldset", {}, make("legend", {}, legend), buttons);
}

/* The kinds of attention of this model. */
function attentionRadioGroup(selected, onChange) {
  const options = attentionKinds().map((kind) => {
    const { title, description } = ATTENTION_KINDS[kind];
    return { value: kind, content: title, title: description };
  });
  return radioGroup("attention", options, selected, onChange);
}

/* The tokens of a side; target tokens also show the token that is predicted there. */
function tokenRadioGroup(legend, side, selected, onChange) {
  const options = tokensOf(side).map((token, position) => {
    const predicted = predictedToken(side, position);
    const label = isolatedLabel(token);
    return {
      value: position,
      content: tokenElement(token),
      note: predicted === null ? null : ["→ ", tokenElement(predicted)],
      label: predicted === null ? label : `reads ${label}, predicts ${isolatedLabel(predicted)}`,
    };
  });
  return radioGroup(legend, options, selected, onChange);
}

/* Options 1 to count. */
function numberOptions(count) {
  return Array.from({ length: count }, (_, index) => ({ value: index + 1, content: String(index + 1) }));
}

/* A view replaces its radio groups at every change; the selected button of the changed group gets the focus back. */
function focusRadioGroup(field) {
  document.querySelector(`.view:not([hidden]) [data-field="${field}"] input:checked`)?.focus();
}
