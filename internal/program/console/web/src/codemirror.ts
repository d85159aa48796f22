// The editor of YAML, which is loaded when it is first shown.

import { autocompletion, closeBrackets, closeBracketsKeymap, type CompletionContext, completionKeymap, startCompletion } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands';
import { yaml } from '@codemirror/lang-yaml';
import { bracketMatching, foldGutter, foldKeymap, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from '@codemirror/language';
import { type Diagnostic, lintGutter, lintKeymap, setDiagnostics } from '@codemirror/lint';
import { highlightSelectionMatches, searchKeymap } from '@codemirror/search';
import { Annotation, EditorState } from '@codemirror/state';
import { drawSelection, EditorView, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, hoverTooltip, keymap, lineNumbers } from '@codemirror/view';
import { tags } from '@lezer/highlight';
import { adoptStyles } from './sheets';
import { offersAt, placeAt, schemaAt, type Typed, typeOf } from './yamlschema';

// Colours are those of the page, in either theme.
const theme = EditorView.theme({
  '&': { color: 'var(--text)', backgroundColor: 'var(--panel)', fontSize: '12.5px', maxHeight: 'calc(100vh - 250px)', minHeight: '220px' },
  '&.cm-focused': { outline: '2px solid var(--accent)' },
  '.cm-scroller': { fontFamily: 'var(--mono)', lineHeight: '1.5', overflow: 'auto' },
  '.cm-content': { caretColor: 'var(--text)', padding: '8px 0' },
  '.cm-cursor, .cm-dropCursor': { borderLeftColor: 'var(--text)' },
  '&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground': { backgroundColor: 'var(--selection)' },
  '.cm-gutters': { backgroundColor: 'var(--sunk)', color: 'var(--quiet)', border: 'none' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'var(--active-line)' },
  '.cm-selectionMatch': { backgroundColor: 'var(--fresh)' },
  '.cm-tooltip': { backgroundColor: 'var(--panel)', color: 'var(--text)', border: '1px solid var(--line)', borderRadius: '6px' },
  '.cm-tooltip-autocomplete > ul > li[aria-selected]': { backgroundColor: 'var(--accent)', color: 'var(--accent-text)' },
  '.cm-tooltip-autocomplete > ul > li[aria-selected] .cm-completionDetail': { color: 'var(--accent-text)' },
  '.cm-completionDetail': { color: 'var(--quiet)', fontStyle: 'normal', marginLeft: '1em' },
  '.cm-completionInfo, .cm-about': { maxWidth: '420px', padding: '6px 9px', whiteSpace: 'pre-line', font: '13px/1.4 system-ui, sans-serif' },
  '.cm-about strong': { fontFamily: 'var(--mono)' },
  '.cm-about p': { margin: '4px 0 0' },
  '.cm-diagnostic': { font: '13px/1.4 system-ui, sans-serif' },
  '.cm-panels': { backgroundColor: 'var(--sunk)', color: 'var(--text)', borderColor: 'var(--line)' },
  '.cm-textfield': { backgroundColor: 'var(--panel)', border: '1px solid var(--line)' },
  '.cm-button': { backgroundImage: 'none', backgroundColor: 'var(--panel)', border: '1px solid var(--line)' },
  '.cm-foldPlaceholder': { backgroundColor: 'var(--sunk)', color: 'var(--quiet)', border: '1px solid var(--line)' },
});
const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: 'var(--accent)' },
  { tag: [tags.string, tags.special(tags.string)], color: 'var(--good)' },
  { tag: [tags.comment, tags.lineComment], color: 'var(--quiet)', fontStyle: 'italic' },
  { tag: [tags.keyword, tags.bool, tags.null, tags.number], color: 'var(--open)' },
  { tag: tags.invalid, color: 'var(--bad)' },
]);

// A change that the owner of the editor has made, and knows.
const told = Annotation.define<boolean>();

export interface Mark {
  from: number;
  to: number;
  severity: 'error' | 'warning';
  message: string;
}

export interface CodeEditor {
  setText(text: string): void;
  setMarks(marks: Mark[]): void;
  jump(at: number): void;
  destroy(): void;
}

export function codeEditor(parent: HTMLElement, start: string, options: { label: string; describedBy: string; typed: () => Typed | undefined; changed: (text: string) => void; submit: () => void }): CodeEditor {
  adoptStyles();
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: start,
      extensions: [
        lineNumbers(), foldGutter(), lintGutter(), highlightActiveLineGutter(), highlightSpecialChars(), history(), drawSelection(), indentOnInput(), bracketMatching(), closeBrackets(),
        highlightActiveLine(), highlightSelectionMatches(), indentUnit.of('  '), EditorState.tabSize.of(2), EditorView.lineWrapping,
        yaml(), syntaxHighlighting(colours), theme,
        autocompletion({ override: [(context) => complete(context, options.typed())], activateOnCompletion: () => true }),
        hoverTooltip((v, pos) => about(v, pos, options.typed())),
        EditorView.contentAttributes.of({ 'aria-label': options.label, 'aria-describedby': options.describedBy, spellcheck: 'false', autocapitalize: 'off' }),
        keymap.of([
          { key: 'Mod-s', run: () => (options.submit(), true) },
          ...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...foldKeymap, ...completionKeymap, ...lintKeymap, indentWithTab,
        ]),
        EditorView.domEventHandlers({ beforeinput: replaceLines }),
        EditorView.updateListener.of((u) => {
          if (u.docChanged && !u.transactions.some((t) => t.annotation(told))) options.changed(u.state.doc.toString());
        }),
      ],
    }),
  });
  return {
    setText(text) {
      // Only what differs is replaced, so that the cursor stays.
      const old = view.state.doc.toString();
      let from = 0;
      while (from < old.length && from < text.length && old[from] === text[from]) from++;
      let end = 0;
      while (end < old.length - from && end < text.length - from && old[old.length - 1 - end] === text[text.length - 1 - end]) end++;
      if (from + end < old.length || from + end < text.length) view.dispatch({ changes: { from, to: old.length - end, insert: text.slice(from, text.length - end) }, annotations: told.of(true) });
    },
    setMarks(marks) {
      const most = view.state.doc.length;
      const fitting: Diagnostic[] = marks.map((m) => ({ ...m, from: Math.min(m.from, most), to: Math.min(Math.max(m.to, m.from), most) }));
      view.dispatch(setDiagnostics(view.state, fitting));
    },
    jump(position) {
      const at = Math.min(position, view.state.doc.length);
      view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: 'center' }) });
      view.focus();
    },
    destroy: () => view.destroy(),
  };
}

// replaceLines types over several lines. The browser would join them with an inline style, which the page's policy
// refuses, and complain of that.
function replaceLines(event: InputEvent, view: EditorView): boolean {
  const { from, to } = view.state.selection.main;
  const text = event.data;
  if (event.inputType !== 'insertText' || !text || view.composing || !view.state.sliceDoc(from, to).includes('\n')) return false;
  const insert = () => view.state.update(view.state.replaceSelection(text), { userEvent: 'input.type', scrollIntoView: true });
  if (!view.state.facet(EditorView.inputHandler).some((handle) => handle(view, from, to, text, insert))) view.dispatch(insert());
  return true;
}

function lineAt(state: EditorState): (n: number) => string {
  return (n) => state.doc.line(n).text;
}

function complete(context: CompletionContext, typed: Typed | undefined) {
  if (!typed) return null;
  const line = context.state.doc.lineAt(context.pos);
  const found = offersAt(typed, lineAt(context.state), context.state.doc.lines, line.number, context.pos - line.from);
  if (!found || found.offers.length === 0) return null;
  // An empty line is not interrupted unless it is asked for.
  if (!context.explicit && !context.matchBefore(/[\w.-]+$|: +$|- $/)) return null;
  return {
    from: line.from + found.from,
    options: found.offers.map((o) => ({
      label: o.label,
      type: o.type,
      detail: o.detail,
      boost: o.type === 'keyword' ? 1 : 0,
      ...(o.about ? { info: () => document.createTextNode(o.about) } : {}),
      apply: (view: EditorView, _: unknown, from: number, to: number) => {
        // What follows on the line, a colon say, is not written twice.
        const after = view.state.doc.lineAt(to).text.slice(to - view.state.doc.lineAt(to).from);
        const insert = after.startsWith(':') ? o.label : o.insert;
        view.dispatch({ changes: { from, to, insert }, selection: { anchor: from + insert.length }, userEvent: 'input.complete' });
        if (insert.endsWith(' ')) startCompletion(view);
      },
    })),
  };
}

function about(view: EditorView, position: number, typed: Typed | undefined) {
  if (!typed) return null;
  const line = view.state.doc.lineAt(position);
  const key = /^ *(?:- +)*/.exec(line.text)![0].length;
  const colon = line.text.indexOf(':', key);
  if (colon < 0 || position < line.from + key || position > line.from + colon) return null;
  const place = placeAt(lineAt(view.state), line.number);
  const schema = place && schemaAt(typed, place);
  if (!schema) return null;
  const limits = [schema.default !== undefined && typeof schema.default !== 'object' && `default ${String(schema.default)}`, schema.minimum !== undefined && `from ${schema.minimum}`, schema.maximum !== undefined && `to ${schema.maximum}`, schema.enum?.length && `one of ${schema.enum.map(String).join(', ')}`].filter(Boolean);
  return {
    pos: line.from + key,
    end: line.from + colon,
    create: () => {
      const dom = document.createElement('div');
      dom.className = 'cm-about';
      const name = document.createElement('strong');
      name.textContent = place.filter((p) => p !== '-').join('.');
      dom.append(name, ` ${[typeOf(schema, typed.resolve), ...limits].join(', ')}`);
      if (schema.description) {
        const text = document.createElement('p');
        text.textContent = schema.description;
        dom.append(text);
      }
      return { dom };
    },
  };
}
