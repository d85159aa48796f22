// Uses the client against a server: node use.js SERVER TOKEN. Each step asserts.
import { ApiError, connect, type Change, type shopExampleComV1 as shop } from './api/index.js';
import type { usePage, useQuery, useWatch } from './api/react.js';

declare const process: { argv: string[] };
const [, , server = '', token = ''] = process.argv;
let asked = 0;
const api = connect({ server, token: () => token, fieldManager: 'test', fetch: (...a) => (asked++, fetch(...a)), reconnect: { first: 20, longest: 200 } });
const widgets = api.shop.v1.widgets.in('default');

function equal(got: unknown, want: unknown, what: string): void {
  if (JSON.stringify(got) !== JSON.stringify(want)) throw new Error(`${what}: ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
}
async function refused(of: Promise<unknown>, what: string): Promise<ApiError> {
  try {
    await of;
  } catch (error) {
    if (error instanceof ApiError) return error;
    throw error;
  }
  throw new Error(`${what} is accepted`);
}
const named = (w: shop.Widget): string => w.metadata.name;

async function objects(): Promise<void> {
  for (const [name, replicas, size] of [['b', 2, 'small'], ['a', 3, 'large'], ['c', 1, 'small']] as const) {
    await widgets.create({ metadata: { name, labels: { at: 'home' } }, spec: { replicas, size } });
  }
  const a = await widgets.get('a');
  equal([a.apiVersion, a.kind, a.spec.size], ['shop.example.com/v1', 'Widget', 'large'], 'get');
  const again = await refused(widgets.create({ metadata: { name: 'a' } }), 'a second a');
  equal([again.isAlreadyExists, again.isConflict, again.code], [true, false, 409], 'the error of a second a');
  const invalid = await refused(widgets.create({ metadata: { name: 'd' }, spec: { size: 'huge' } }), 'a huge widget');
  equal([invalid.reason, invalid.causes[0]?.field, invalid.isInvalid], ['Invalid', 'spec.size', true], 'the error of a huge widget');
  equal((await refused(widgets.get('none'), 'none')).isNotFound, true, 'the error of a missing widget');
  const unknown = await refused(widgets.create({ metadata: { name: 'd' }, spec: { color: 'red' } } as unknown as shop.WidgetInput), 'an unknown field');
  equal(unknown.code, 400, 'an unknown field');

  // An update of what has changed since is a conflict; modify tries again.
  const changed = await widgets.modify('a', (w) => void (w.spec.replicas = 4));
  equal(changed.spec.replicas, 4, 'modify');
  equal((await refused(widgets.update({ ...a, spec: { size: 'small' } }), 'a stale update')).isConflict, true, 'the error of a stale update');
  equal((await refused(widgets.patch('a', { spec: { size: 'small' } }, { resourceVersion: a.metadata.resourceVersion }), 'a stale patch')).isConflict, true, 'a stale patch');
  equal((await widgets.patch('a', { spec: { size: 'medium' } }, { resourceVersion: changed.metadata.resourceVersion })).spec.size, 'medium', 'a patch');
  equal((await widgets.patch('a', [{ op: 'replace', path: '/spec/size', value: 'large' }], { type: 'json' })).spec.size, 'large', 'a JSON patch');
  equal((await widgets.create({ metadata: { name: 'dry' } }, { dryRun: true })).metadata.name, 'dry', 'a dry run');
  equal((await refused(widgets.get('dry'), 'what a dry run has made')).code, 404, 'a dry run');

  const applied = await widgets.apply({ metadata: { name: 'e' }, spec: { size: 'small' } });
  equal(applied.metadata.managedFields?.[0]?.manager, 'test', 'the manager of an apply');
  const others = await refused(widgets.apply({ metadata: { name: 'e' }, spec: { size: 'large' } }, { fieldManager: 'other' }), 'an apply of another');
  equal([others.isConflictOfManagers, others.causes[0]?.field], [true, '.spec.size'], 'the error of an apply of another');
  await widgets.apply({ metadata: { name: 'e' }, spec: { size: 'large' } }, { fieldManager: 'other', force: true });
  equal((await refused(widgets.delete('e', { resourceVersion: applied.metadata.resourceVersion }), 'a stale deletion')).isConflict, true, 'a stale deletion');
  await widgets.delete('e', { uid: applied.metadata.uid });

  const all: string[] = [];
  for await (const w of api.shop.v1.widgets.all({ limit: 2, labelSelector: { at: 'home' } })) all.push(`${named(w)} ${w.kind}`);
  equal(all, ['a Widget', 'b Widget', 'c Widget'], 'all');
  equal((await widgets.list({ limit: 1 })).remaining, 2, 'a part of a list');
}

async function queries(): Promise<void> {
  const page = await widgets.query({ sortBy: 'spec.replicas', ascending: false, limit: 2, facets: ['spec.size'], where: { 'spec.replicas': { gte: 1, lt: 9 } } });
  equal(page.items.map(named), ['a', 'b'], 'a page');
  equal([page.totalItems, page.facets?.['spec.size']?.[0]], [3, { value: 'small', count: 2 }], 'its counts');
  const next = await widgets.query({ sortBy: 'spec.replicas', ascending: false, limit: 2, where: { 'spec.replicas': { gte: 1, lt: 9 } }, cursor: page.cursor });
  equal([next.items.map(named), next.cursor], [['c'], undefined], 'the next page');
  const pages: string[][] = [];
  for await (const p of api.shop.v1.widgets.pages({ sortBy: 'name', limit: 2, where: { creationTimestamp: { gt: new Date('2020-01-01') }, name: { contains: ['a', ''] } } })) pages.push(p.items.map(named));
  equal(pages, [['a']], 'pages');
  equal((await widgets.query({ where: { 'spec.size': ['small', 'medium'] }, q: 'B', fields: ['spec.size'] })).items.map((w) => [w.metadata.name, w.spec.size, w.spec.replicas]), [['b', 'small', null]], 'fields');
  const known = await widgets.query({ sortBy: 'name' });
  equal(typeof known.etag, 'string', 'the entity tag of a page');
  equal((await widgets.query({ sortBy: 'name', known })) === known, true, 'a page that has not changed');
  await widgets.patch('c', { metadata: { annotations: { x: 'y' } } });
  equal((await widgets.query({ sortBy: 'name', known })) === known, false, 'a page that has changed');
  const wrong = await refused(widgets.query({ cursor: 'x' }), 'a wrong cursor');
  equal(wrong.reason, 'BadRequest', 'the error of a wrong cursor');
}

async function watches(): Promise<void> {
  for (const how of ['watch', 'tail'] as const) {
    const ending = new AbortController();
    const seen: string[] = [];
    for await (const change of widgets[how]({ labelSelector: { at: 'home' }, signal: ending.signal }) as AsyncGenerator<Change<shop.Widget>>) {
      seen.push(change.type + ('object' in change ? ' ' + named(change.object) : ''));
      if (change.type === 'SYNCED') {
        equal([...seen].sort(), ['ADDED a', 'ADDED b', 'ADDED c', 'SYNCED'], `the begin of a ${how}`);
        await widgets.create({ metadata: { name: 'w', labels: { at: 'home' } } });
        await widgets.patch('w', { spec: { size: 'small' } });
        await widgets.delete('w');
      }
      if (change.type === 'DELETED') ending.abort();
    }
    equal(seen.slice(4), ['ADDED w', 'MODIFIED w', 'DELETED w'], `the changes of a ${how}`);
  }

  // A connection that breaks is made again, and nothing is delivered twice or lost.
  let broken: (() => void) | undefined;
  const breaking = connect({
    server,
    token,
    reconnect: { first: 20, longest: 200 },
    fetch: async (url, init) => {
      const cut = new AbortController();
      init?.signal?.addEventListener('abort', () => cut.abort());
      broken = () => cut.abort(new Error('cut'));
      return fetch(url, { ...init, signal: cut.signal });
    },
  });
  const seen: string[] = [];
  for await (const change of breaking.shop.v1.widgets.in('default').tail({ fields: ['spec.size'] })) {
    seen.push(change.type + ('object' in change ? ' ' + named(change.object) : ''));
    if (seen.length === 4) {
      broken?.();
      await widgets.create({ metadata: { name: 'later' } });
    }
    if (change.type === 'ADDED' && named(change.object) === 'later') break;
  }
  equal(seen.filter((s) => s !== 'LOST').slice(4), ['SYNCED', 'ADDED later'], 'a tail across a broken connection');
  equal(seen.filter((s) => s === 'LOST').length > 0, true, 'a broken connection is told');

  const stale = connect({ server, token: 'wrong' }).shop.v1.widgets.watch();
  equal((await refused(stale.next(), 'a watch with a wrong token')).isUnauthorized, true, 'a watch with a wrong token');
  const aborted = new AbortController();
  aborted.abort();
  equal((await widgets.watch({ signal: aborted.signal }).next()).done, true, 'a watch that is aborted before it begins');
}

async function parts(): Promise<void> {
  const status = await widgets.status.patch('a', { status: { phase: 'Ready' } });
  equal(status.status.phase, 'Ready', 'the status');
  equal((await widgets.actions.resizing('a', { metadata: { name: 'a' }, size: 'small' })).spec.size, 'small', 'an action');
  equal((await widgets.views.summary('a', { style: 'short' })).verdict, 'short', 'a view');
  const lines: string[] = [];
  for await (const line of widgets.streams.log('a', { prefix: 'it' })) lines.push(line);
  equal(lines, ['a begins', 'it ends'], 'a stream');
  const started = await widgets.actions.polishing('a', {});
  const operations = api.shop.v1.operations.in('default');
  const ended = await operations.until(started.metadata.name, (o) => o.status.phase === 'Succeeded');
  equal((ended.status.result as { verdict?: string }).verdict, 'a shines', 'an operation');
  equal((await widgets.actions.polishing('b', {}, { wait: '10s' })).status.phase, 'Succeeded', 'an operation that is waited for');

  const shelves = api.shop.v1.shelves;
  await shelves.create({ metadata: { name: 's' }, widgets: ['a'] });
  equal((await shelves.get('s')).widgets, ['a'], 'a kind without namespaces');
  const inNamespace = shelves as unknown as { in(namespace: string): unknown };
  let message = '';
  try {
    inNamespace.in('default');
  } catch (error) {
    message = String(error);
  }
  equal(message, 'TypeError: shelves are in no namespace', 'a namespace of a kind without namespaces');
}

async function tokens(): Promise<void> {
  let current = 'expired';
  const renewing = connect({ server, token: () => current, renew: () => ((current = token), true) });
  equal((await renewing.shop.v1.widgets.in('default').get('a')).metadata.name, 'a', 'a token that is renewed');
  equal((await refused(connect({ server, token: 'x', renew: () => false }).shop.v1.widgets.list(), 'a wrong token')).isUnauthorized, true, 'a wrong token');
}

// The hooks are compiled with the rest; a browser renders them in samples/restaurant/web.
export type Hooks = [typeof usePage, typeof useQuery, typeof useWatch];

for (const step of [objects, queries, watches, parts, tokens]) await step();
await widgets.deleteMany({ labelSelector: 'at=home' });
equal(asked > 20, true, 'the requests');
console.log('all steps passed');
