// An action: a subresource that takes a request, with a form for its body.

import { useState } from 'preact/hooks';
import { isObjectWithMetadata, type Obj, post } from './api';
import { CopyAs } from './copymenu';
import { type Kind, kindOf, pathOf } from './discovery';
import { textOf } from './document';
import { NotSaved } from './edit';
import { PlainForm } from './form';
import { bodyOf } from './openapi';
import { go, linkToObject } from './router';
import { causesOf } from './values';
import { Dialog, Loading, Problem, useApp, useLoaded } from './widgets';

export function Action({ kind, namespace, name, sub, close }: { kind: Kind; namespace: string; name: string; sub: string; close: () => void }) {
  const { say, kinds } = useApp();
  const body = useLoaded(() => bodyOf(kind, sub), [kind, sub]);
  const [value, set] = useState<Obj>({});
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const [answer, setAnswer] = useState<unknown>();
  const causes = causesOf(error);
  const asked = (): Obj => {
    const made = body.value && body.value.resolve(body.value.schema)['x-kubernetes-group-version-kind']?.[0];
    return { ...(made ? { apiVersion: made.group ? `${made.group}/${made.version}` : made.version, kind: made.kind } : {}), ...value };
  };
  const run = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      const got = await post<unknown>(pathOf(kind, namespace, name, sub), asked());
      const operation = isObjectWithMetadata(got) ? kindOf(kinds, got.apiVersion, got.kind) : undefined;
      say(`${sub} of ${name} was accepted.`);
      // What takes long is answered with an operation, whose progress is worth looking at.
      if (operation && isObjectWithMetadata(got) && operation.resource !== kind.resource && got.metadata.name) {
        close();
        go(linkToObject(operation, got.metadata.namespace, got.metadata.name));
      } else setAnswer(got);
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={`${sub} of ${name}`} close={close}>
      {answer !== undefined ? (
        <>
          <pre class="source" tabIndex={0}>
            {textOf(answer)}
          </pre>
          <div class="buttons">
            <button type="button" autofocus onClick={close}>
              Close
            </button>
          </div>
        </>
      ) : (
        <form novalidate onSubmit={(e) => void run(e)}>
          <NotSaved error={error} causes={body.value ? causes.length : 0} title="Refused" />
          <Problem error={body.error} />
          {body.value ? <PlainForm schema={body.value.schema} resolve={body.value.resolve} value={value} set={(v) => set(v as Obj)} causes={causes} /> : !body.error && <Loading what="the form" />}
          <div class="buttons">
            <CopyAs describe={() => ({ method: 'POST', path: pathOf(kind, namespace, name, sub), body: asked() })} />
            <button type="button" onClick={close}>
              Cancel
            </button>
            <button type="submit" class="primary" disabled={busy}>
              {sub}
            </button>
          </div>
        </form>
      )}
    </Dialog>
  );
}
