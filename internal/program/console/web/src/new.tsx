// A new object.

import { useEffect, useState } from 'preact/hooks';
import { type Cause, type Obj, post, Refused, type Resource } from './api';
import { apiVersion, type Kind, pathOf } from './discovery';
import { type Draft, Editor } from './editor';
import { schemaOf, shapeOf } from './openapi';
import { go, linkToKind, linkToObject } from './router';
import { isObj } from './values';
import { Problem, useApp } from './widgets';

export function NewView({ kind, namespace }: { kind: Kind; namespace: string }) {
  const { say } = useApp();
  const [draft, setDraft] = useState<Draft>(() => ({ object: blank(kind, namespace) }));
  const [mode, setMode] = useState<'form' | 'yaml'>('form');
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  // A spec that has to be there is there, so that its form is open.
  useEffect(() => {
    void schemaOf(kind).then(
      ({ schema, resolve }) => {
        const s = resolve(schema);
        const spec = s.properties?.['spec'];
        if (spec && shapeOf(resolve(spec)) === 'object') setDraft((d) => (d.object['spec'] === undefined ? { object: { ...d.object, spec: {} } } : d));
      },
      () => setMode('yaml'),
    );
  }, [kind]);
  const causes: Cause[] = error instanceof Refused && error.code === 422 ? error.causes : [];
  const create = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      const metadata = isObj(draft.object['metadata']) ? draft.object['metadata'] : {};
      const into = typeof metadata['namespace'] === 'string' ? metadata['namespace'] : namespace || 'default';
      const path = pathOf(kind, kind.namespaced ? into : undefined, undefined, undefined, { fieldManager: 'annex-console', fieldValidation: 'Strict' });
      const made = await post<Resource>(path, draft.object);
      say(`${kind.kind} ${made.metadata.name} was created.`);
      go(linkToObject(kind, made.metadata.namespace, made.metadata.name));
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  return (
    <form onSubmit={(e) => void create(e)} novalidate>
      <div class="heading">
        <h1>New {kind.kind}</h1>
        <span class="gap" />
        <a class="button" href={linkToKind(kind, namespace)}>
          Cancel
        </a>
        <button type="submit" class="primary" disabled={busy || !!draft.error}>
          Create
        </button>
      </div>
      <Problem error={error} title="Not created" />
      <Editor kind={kind} object={draft.object} change={setDraft} causes={causes} creating={true} mode={mode} setMode={setMode} />
    </form>
  );
}

function blank(kind: Kind, namespace: string): Obj {
  return { apiVersion: apiVersion(kind), kind: kind.kind, metadata: { name: '', ...(kind.namespaced ? { namespace: namespace || 'default' } : {}) } };
}
