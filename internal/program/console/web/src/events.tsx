// The events of an object.

import { useState } from 'preact/hooks';
import { follow, get, type Resource } from './api';
import { type Kind, pathOf } from './discovery';
import { age } from './table';
import { Problem, useNow, useTask } from './widgets';

interface EventObject extends Resource {
  type?: string;
  reason?: string;
  message?: string;
  count?: number;
  lastTimestamp?: string;
  eventTime?: string;
  source?: { component?: string };
  reportingComponent?: string;
}

export function Events({ kind, object, namespace }: { kind: Kind; object: Resource; namespace: string }) {
  const [all, setAll] = useState<Map<string, EventObject>>(new Map());
  const [error, setError] = useState<unknown>();
  const now = useNow(5000);
  const fieldSelector = object.metadata.uid ? `involvedObject.uid=${object.metadata.uid}` : `involvedObject.name=${object.metadata.name}`;
  useTask(
    (signal) =>
      follow<EventObject>(
        signal,
        async () => {
          const list = await get<{ items: EventObject[] | null; metadata: { resourceVersion: string } }>(pathOf(kind, namespace || 'default', undefined, undefined, { fieldSelector }), { signal });
          setAll(new Map((list.items ?? []).map((e) => [e.metadata.uid ?? e.metadata.name, e])));
          setError(undefined);
          return list.metadata.resourceVersion;
        },
        (resourceVersion) => pathOf(kind, namespace || 'default', undefined, undefined, { fieldSelector, watch: 'true', allowWatchBookmarks: 'true', resourceVersion }),
        'application/json',
        (event) =>
          setAll((old) => {
            const next = new Map(old);
            const key = event.object.metadata.uid ?? event.object.metadata.name;
            if (event.type === 'DELETED') next.delete(key);
            else if (event.type !== 'BOOKMARK') next.set(key, event.object);
            return next;
          }),
        setError,
        () => setError(undefined),
      ),
    [kind, fieldSelector],
  );
  const time = (e: EventObject) => e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp ?? '';
  const sorted = [...all.values()].sort((a, b) => time(b).localeCompare(time(a)));
  return (
    <>
      <Problem error={error} />
      <div class="scroll" tabIndex={0} role="region" aria-label="Events" aria-live="polite">
        <table>
          <thead>
            <tr>
              {['Last seen', 'Type', 'Reason', 'From', 'Message'].map((h) => (
                <th scope="col">{h}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {sorted.map((e) => (
              <tr key={e.metadata.uid}>
                <td>
                  {age(time(e), now)}
                  {(e.count ?? 1) > 1 && ` (×${e.count})`}
                </td>
                <td>
                  <span class={`tone ${e.type === 'Warning' ? 'bad' : ''}`}>{e.type}</span>
                </td>
                <td>{e.reason}</td>
                <td>{e.reportingComponent || e.source?.component}</td>
                <td class="wrap">{e.message}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {sorted.length === 0 && <p class="empty">There are no events of this object.</p>}
      </div>
    </>
  );
}
