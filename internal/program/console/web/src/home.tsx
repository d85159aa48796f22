// The first page: one's own kinds with how many objects there are, what fails, what happened, and how busy the
// server is. Each part shows what the user may see, and is left out otherwise.

import { useState } from 'preact/hooks';
import { pause, post, Refused, request, type Resource } from './api';
import { CopyAs } from './copymenu';
import { type Kind } from './discovery';
import { type Asked, pageOf } from './querying';
import { linkToKind, linkToObject } from './router';
import { age } from './table';
import { isObj } from './values';
import { Loading, useApp, useNow, useTask, Version } from './widgets';

const atOnce = 4;
// Objects of larger kinds are not searched for what fails each time that the page is opened.
const mostSearched = 20_000;
const every = 15_000;

export const isOwn = (group: string) => group !== '' && !group.endsWith('.k8s.io') && group !== 'apps' && group !== 'batch' && group !== 'autoscaling' && group !== 'policy';

interface Failing {
  kind: Kind;
  object: Resource;
}

const none: Asked = { filters: [], labels: '', words: '', sortBy: '', ascending: true };

async function over<T>(all: T[], signal: AbortSignal, one: (t: T) => Promise<void>): Promise<void> {
  const queue = all.values();
  const work = async () => {
    for (const t of queue) if (!signal.aborted) await one(t).catch(() => {});
  };
  await Promise.all(Array.from({ length: atOnce }, work));
}

export function Home({ groups, loading }: { groups: [string, Kind[]][]; loading: boolean }) {
  const { config: c, namespace } = useApp();
  const [counts, setCounts] = useState<Map<Kind, number>>(new Map());
  const [failing, setFailing] = useState<{ found: Failing[]; total: number; left: string[] } | undefined>();
  const [events, setEvents] = useState<Resource[] | undefined>();
  const now = useNow(5000);
  const kinds = groups.flatMap(([, all]) => all);
  const key = kinds.map((k) => `${k.group}/${k.resource}`).join(' ');
  useTask(
    async (signal) => {
      if (!c.query || kinds.length === 0) return;
      while (!signal.aborted) {
        const found = new Map<Kind, number>();
        await over(kinds, signal, async (k) => {
          const { totalItems } = await pageOf(c.query!, k, k.namespaced ? namespace : '', none, { limit: 0 }, signal);
          found.set(k, totalItems);
          if (!signal.aborted) setCounts((old) => new Map(old).set(k, totalItems));
        });
        const fails: Failing[] = [];
        const left: string[] = [];
        let total = 0;
        await over(kinds.filter((k) => isOwn(k.group) || k.resource === 'pods' || k.group === 'apps'), signal, async (k) => {
          if ((found.get(k) ?? 0) > mostSearched) return void left.push(k.kind);
          const asked = { ...none, filters: [{ field: 'failing', op: '', value: 'true' }], sortBy: 'creationTimestamp', ascending: false };
          const page = await pageOf(c.query!, k, k.namespaced ? namespace : '', asked, { limit: 5, fields: 'status.conditions' }, signal);
          total += page.totalItems;
          for (const object of page.items) fails.push({ kind: k, object });
        });
        if (!signal.aborted) setFailing({ found: fails, total, left });
        const eventKind = kinds.find((k) => k.group === '' && k.resource === 'events');
        if (eventKind) {
          const page = await pageOf(c.query, eventKind, namespace, { ...none, sortBy: 'creationTimestamp', ascending: false }, { limit: 8 }, signal).catch(() => undefined);
          if (!signal.aborted) setEvents(page?.items);
        }
        await pause(every, signal);
        while (document.visibilityState === 'hidden' && !signal.aborted) await pause(2000, signal);
      }
    },
    [key, namespace, c.query],
  );
  const own = groups.filter(([g]) => isOwn(g));
  const others = groups.filter(([g]) => !isOwn(g));
  const card = ([group, all]: [string, Kind[]]) => (
    <section class="card" key={group}>
      <h2>{group || 'core'}</h2>
      <ul>
        {all.map((k) => (
          <li key={k.resource}>
            <a href={linkToKind(k, namespace)}>{k.kind}</a>
            <span class="count">{counts.has(k) ? counts.get(k)!.toLocaleString('en') : ''}</span>
          </li>
        ))}
      </ul>
    </section>
  );
  return (
    <>
      <div class="heading">
        <h1>{c.title}</h1>
        <span class="gap" />
        {c.query && <CopyAs describe={() => ({ method: 'GET', path: c.query! })} />}
      </div>
      <Version config={c} />
      {loading && groups.length === 0 && <Loading what="the kinds" />}
      {!loading && groups.length === 0 && <p>There is nothing here that you may list{namespace ? ` in the namespace ${namespace}` : ' in all namespaces: choose one of yours above'}.</p>}
      <div class="cards">{own.map(card)}</div>
      {failing && (failing.found.length > 0 || own.length > 0) && (
        <section class="part" aria-label="What fails">
          <h2>What fails {failing.total > 0 && <span class="tone bad">{failing.total.toLocaleString('en')}</span>}</h2>
          {failing.found.length === 0 ? (
            <p class="quiet">No condition of these objects fails{namespace && ` in ${namespace}`}.</p>
          ) : (
            <ul class="lines">
              {failing.found.slice(0, 12).map(({ kind, object }) => (
                <li key={object.metadata.uid}>
                  <a href={linkToObject(kind, object.metadata.namespace, object.metadata.name)}>
                    {kind.kind} {object.metadata.namespace && object.metadata.namespace + '/'}
                    {object.metadata.name}
                  </a>{' '}
                  {conditionsOf(object).map((text) => (
                    <span class="quiet">{text}</span>
                  ))}
                </li>
              ))}
              {failing.total > Math.min(12, failing.found.length) && <li class="quiet">and {(failing.total - Math.min(12, failing.found.length)).toLocaleString('en')} more</li>}
            </ul>
          )}
          {failing.left.length > 0 && <p class="quiet">Not searched, because there are more than {mostSearched.toLocaleString('en')}: {failing.left.join(', ')}.</p>}
        </section>
      )}
      {events && events.length > 0 && (
        <section class="part" aria-label="Recent events">
          <h2>Recent events</h2>
          <ul class="lines">
            {events.map((e) => (
              <li key={e.metadata.uid}>
                <span class="quiet">{age(e.metadata.creationTimestamp, now)}</span> <span class={`tone ${e['type'] === 'Warning' ? 'bad' : ''}`}>{String(e['reason'] ?? '')}</span> {involved(e)} {String(e['message'] ?? e['note'] ?? '')}
              </li>
            ))}
          </ul>
        </section>
      )}
      <Rates />
      <div class="cards">{others.map(card)}</div>
    </>
  );
}

function involved(e: Resource): string {
  const of = (e['involvedObject'] ?? e['regarding']) as { kind?: string; name?: string } | undefined;
  return of?.name ? `${of.kind ?? ''} ${of.name}:` : '';
}

const shouldBeFalse = /^(Failed|Failure|Degraded|Stalled|Error|ReplicaFailure|Rejected|.*Pressure|NetworkUnavailable)$/;

function conditionsOf(object: Resource): string[] {
  const status = object['status'] as { conditions?: { type?: string; status?: string; reason?: string; message?: string }[] } | undefined;
  return (Array.isArray(status?.conditions) ? status.conditions : [])
    .filter((c) => isObj(c as never) && c.status === (shouldBeFalse.test(c.type ?? '') ? 'True' : 'False'))
    .map((c) => `${c.type} is ${c.status}${c.reason ? ', ' + c.reason : ''}${c.message ? ': ' + c.message : ''}`)
    .slice(0, 2);
}

interface Sample {
  at: number;
  requests: number;
  failed: number;
  storage?: number;
  memory?: number;
  objects?: number;
}

// sampleOf adds up what a scrape of the metrics has.
export function sampleOf(text: string, at: number): Sample {
  const sample: Sample = { at, requests: 0, failed: 0 };
  for (const line of text.split('\n')) {
    if (line.startsWith('#')) continue;
    const value = Number(line.slice(line.lastIndexOf(' ') + 1));
    if (line.startsWith('apiserver_request_total{')) {
      sample.requests += value;
      if (/code="5\d\d"/.test(line)) sample.failed += value;
    } else if (/^annex_storage_(value|history)_bytes\b/.test(line)) sample.storage = (sample.storage ?? 0) + value;
    else if (line.startsWith('process_resident_memory_bytes ')) sample.memory = value;
    else if (/^annex_storage_objects\{/.test(line) && value > 0) sample.objects = (sample.objects ?? 0) + value;
  }
  return sample;
}

const megabytes = (n: number) => `${(n / 1e6).toLocaleString('en', { maximumFractionDigits: n < 1e7 ? 1 : 0 })} MB`;

// Rates reads the metrics twice and more, if the user may.
function Rates() {
  const [samples, setSamples] = useState<Sample[]>([]);
  useTask(async (signal) => {
    const review = await post<{ status: { allowed: boolean } }>('/apis/authorization.k8s.io/v1/selfsubjectaccessreviews', {
      apiVersion: 'authorization.k8s.io/v1',
      kind: 'SelfSubjectAccessReview',
      spec: { nonResourceAttributes: { path: '/metrics', verb: 'get' } },
    });
    if (!review.status.allowed) return;
    while (!signal.aborted) {
      try {
        const text = await (await request('/metrics', { accept: 'text/plain', signal })).text();
        setSamples((old) => [...old.slice(-1), sampleOf(text, Date.now())]);
      } catch (error) {
        if (error instanceof Refused && error.code < 500) return;
      }
      await pause(10_000, signal);
      while (document.visibilityState === 'hidden' && !signal.aborted) await pause(2000, signal);
    }
  }, []);
  const last = samples.at(-1);
  if (!last) return null;
  const before = samples.length > 1 ? samples[0] : undefined;
  const rate = (of: 'requests' | 'failed') => (before ? ((last[of] - before[of]) / ((last.at - before.at) / 1000)).toLocaleString('en', { maximumFractionDigits: 1 }) : undefined);
  return (
    <section class="part" aria-label="The server">
      <h2>The server</h2>
      <dl class="facts">
        <div>
          <dt>Requests</dt>
          <dd>{before ? `${rate('requests')} a second` : `${last.requests.toLocaleString('en')} so far`}</dd>
        </div>
        <div>
          <dt>Failed</dt>
          <dd>{before ? `${rate('failed')} a second` : last.failed.toLocaleString('en')}</dd>
        </div>
        {last.objects !== undefined && (
          <div>
            <dt>Objects</dt>
            <dd>{last.objects.toLocaleString('en')}</dd>
          </div>
        )}
        {last.storage !== undefined && (
          <div>
            <dt>Storage</dt>
            <dd>{megabytes(last.storage)}</dd>
          </div>
        )}
        {last.memory !== undefined && (
          <div>
            <dt>Memory</dt>
            <dd>{megabytes(last.memory)}</dd>
          </div>
        )}
      </dl>
    </section>
  );
}
