// A new object.

import { useCallback, useEffect, useMemo, useState } from 'preact/hooks';
import { type Obj, post, type Resource } from './api';
import { managerOf } from './apply';
import { CopyAs } from './copymenu';
import { apiVersion, type Kind, pathOf } from './discovery';
import { type Doc, docOf, filled, settled } from './document';
import { draftAt, draftKey } from './drafts';
import { isDirty, isSecretKind, NotSaved, read, useKept } from './edit';
import { type Change, Editor, type Mode } from './editor';
import { schemaOf, shapeOf } from './openapi';
import { go, linkToKind, linkToObject } from './router';
import { causesOf, isObj } from './values';
import { useApp } from './widgets';

export function NewView({ kind, namespace }: { kind: Kind; namespace: string }) {
  const { say, session } = useApp();
  const key = draftKey(session.user.username, kind, namespace, '');
  const [found] = useState(() => draftAt(key));
  const [state, setState] = useState<{ doc: Doc; blank: Obj }>(() => {
    const none = blank(kind, namespace);
    if (!found) return { doc: docOf(none), blank: none };
    return { doc: found.object ? { text: found.text, object: found.object, ahead: 'object' } : settled({ text: found.text, object: none, ahead: 'text' }), blank: none };
  });
  const [mode, setMode] = useState<Mode>(found?.mode ?? 'form');
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const { doc } = state;
  const dirty = isDirty(doc, state.blank);
  const { survives, forget } = useKept(key, isSecretKind(kind), state, mode, dirty);
  const change: Change = useCallback((update) => setState((s) => ({ ...s, doc: update(s.doc) })), []);
  // A spec that has to be there is there, so that its form is open.
  const begin = useCallback(
    () =>
      schemaOf(kind).then(
        ({ schema, resolve }) => {
          const spec = resolve(schema).properties?.['spec'];
          if (!spec || shapeOf(resolve(spec)) !== 'object') return;
          setState((s) => {
            const opened = { ...s.blank, spec: {} };
            return isDirty(s.doc, s.blank) ? { ...s, blank: opened } : { doc: filled(s.doc, opened), blank: opened };
          });
        },
        () => setMode('yaml'),
      ),
    [kind],
  );
  useEffect(() => void begin(), [begin]);
  const causes = useMemo(() => causesOf(error), [error]);
  const into = (object: Obj) => {
    const metadata = isObj(object['metadata']) ? object['metadata'] : {};
    return kind.namespaced ? (typeof metadata['namespace'] === 'string' ? metadata['namespace'] : namespace || 'default') : '';
  };
  const parameters = { fieldManager: managerOf(session.user.username), fieldValidation: 'Strict' };
  const create = async () => {
    const whole = read(doc);
    change(() => whole);
    if (whole.error) return;
    setBusy(true);
    setError(undefined);
    try {
      const made = await post<Resource>(pathOf(kind, into(whole.object), undefined, undefined, parameters), whole.object);
      forget();
      say(`${kind.kind} ${made.metadata.name} was created.`);
      go(linkToObject(kind, made.metadata.namespace, made.metadata.name));
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  return (
    <form
      novalidate
      onSubmit={(e) => {
        e.preventDefault();
        void create();
      }}
    >
      <div class="heading">
        <h1>New {kind.kind}</h1>
        {dirty && <span class="tone open">draft, kept {survives ? 'in this tab' : 'until this page is loaded anew'}</span>}
        <span class="gap" />
        {!isSecretKind(kind) && !doc.error && (
          <CopyAs
            describe={() => {
              const { object } = read(doc);
              return { method: 'POST', path: pathOf(kind, into(object)), query: Object.entries(parameters), body: object, of: { kind, namespace: into(object), verb: 'create' } };
            }}
          />
        )}
        <a class="button" href={linkToKind(kind, namespace)}>
          Cancel
        </a>
        <button
          type="button"
          disabled={busy || !dirty}
          onClick={() => {
            forget();
            setError(undefined);
            setState((s) => ({ doc: docOf(s.blank), blank: s.blank }));
          }}
        >
          Discard
        </button>
        <button type="submit" class="primary" disabled={busy || !!doc.error}>
          Create
        </button>
      </div>
      <NotSaved error={error} causes={causes.length} title="Not created" />
      <Editor kind={kind} doc={doc} change={change} causes={causes} creating={true} mode={mode} setMode={setMode} submit={() => void create()} />
    </form>
  );
}

function blank(kind: Kind, namespace: string): Obj {
  return { apiVersion: apiVersion(kind), kind: kind.kind, metadata: { name: '', ...(kind.namespaced ? { namespace: namespace || 'default' } : {}) } };
}
