// Owners of an object and what it owns, as a graph: owners above, dependents below.

import { get, type Meta, type Owner, Refused, type Resource } from './api';
import { type Kind, kindOf, pathOf } from './discovery';
import { may, wanted } from './rights';
import { linkToObject } from './router';
import { Loading, Problem, useApp, useLoaded } from './widgets';

interface Node {
  uid: string;
  kind: string;
  name: string;
  level: number;
  href?: string;
}
interface Drawn {
  nodes: Node[];
  edges: [string, string][];
  partial: string; // why there may be more than is drawn
}

const metadataOnly = 'application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io';
const metadataList = 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io';
const most = 60;
const pages = 10;

async function explore(kinds: Kind[], kind: Kind, object: Resource, namespace: string, signal: AbortSignal): Promise<Drawn> {
  const nodes = new Map<string, Node>();
  const edges: [string, string][] = [];
  let tooMany = false;
  const unread: string[] = [];
  const uid = object.metadata.uid ?? '';
  nodes.set(uid, { uid, kind: kind.kind, name: object.metadata.name, level: 0 });
  // Up: each owner is asked for its own.
  const up = async (meta: Meta, level: number): Promise<void> => {
    for (const owner of meta.ownerReferences ?? []) {
      edges.push([owner.uid, meta.uid ?? '']);
      const known = nodes.get(owner.uid);
      if (known || level < -5) continue;
      const k = kindOf(kinds, owner.apiVersion, owner.kind);
      const node: Node = { uid: owner.uid, kind: owner.kind, name: owner.name, level };
      nodes.set(owner.uid, node);
      if (!k) continue;
      node.href = linkToObject(k, k.namespaced ? namespace : '', owner.name);
      try {
        const found = await get<Resource>(pathOf(k, namespace, owner.name), { accept: metadataOnly, signal });
        await up(found.metadata, level - 1);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
      }
    }
  };
  await up(object.metadata, -1);
  // Down: what lists in the same namespace name as an owner.
  const lists = kinds.filter((k) => k.verbs.includes('list') && (!namespace || k.namespaced) && !['events', 'leases'].includes(k.resource)).slice(0, 50);
  const below = new Map<string, { kind: Kind; meta: Meta }[]>();
  await Promise.all(
    lists.map(async (k) => {
      if (!(await may(wanted(k, 'list', namespace)))) return;
      try {
        let next: string | undefined;
        for (let page = 0; page === 0 || next; page++) {
          if (page === pages) {
            unread.push(k.kind);
            break;
          }
          const list = await get<{ items: Resource[] | null; metadata?: { continue?: string } }>(pathOf(k, namespace, undefined, undefined, { limit: 500, continue: next }), { accept: metadataList, signal });
          next = list.metadata?.continue;
          for (const item of list.items ?? [])
            for (const owner of item.metadata.ownerReferences ?? ([] as Owner[])) below.set(owner.uid, [...(below.get(owner.uid) ?? []), { kind: k, meta: item.metadata }]);
        }
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
      }
    }),
  );
  const down = (of: string, level: number) => {
    for (const d of below.get(of) ?? []) {
      const id = d.meta.uid ?? '';
      if (nodes.size >= most) {
        tooMany = true;
        return;
      }
      if (!edges.some(([a, b]) => a === of && b === id)) edges.push([of, id]);
      if (nodes.has(id)) continue;
      nodes.set(id, { uid: id, kind: d.kind.kind, name: d.meta.name, level, href: linkToObject(d.kind, d.meta.namespace, d.meta.name) });
      down(id, level + 1);
    }
  };
  down(uid, 1);
  const partial = [tooMany && `More than ${most} objects belong to it; the others are not drawn.`, unread.length > 0 && `Of ${unread.join(', ')} only the first ${pages * 500} objects were looked at.`].filter(Boolean).join(' ');
  return { nodes: [...nodes.values()], edges, partial };
}

const width = 190;
const height = 46;
const gapX = 24;
const gapY = 56;

export function Graph({ kind, object, namespace }: { kind: Kind; object: Resource; namespace: string }) {
  const { kinds } = useApp();
  const found = useLoaded((signal) => explore(kinds, kind, object, namespace, signal), [kinds, kind, object.metadata.uid, object.metadata.resourceVersion]);
  if (found.error) return <Problem error={found.error} />;
  if (!found.value) return <Loading what="owners" />;
  const { nodes, edges, partial } = found.value;
  if (nodes.length === 1) return <p class="empty">It has no owner, and owns nothing that you may list.</p>;
  const levels = [...new Set(nodes.map((n) => n.level))].sort((a, b) => a - b);
  const rows = levels.map((l) => nodes.filter((n) => n.level === l));
  const widest = Math.max(...rows.map((r) => r.length));
  const total = widest * (width + gapX) + gapX;
  const place = new Map<string, { x: number; y: number }>();
  rows.forEach((row, y) => row.forEach((n, x) => place.set(n.uid, { x: (total - row.length * (width + gapX) + gapX) / 2 + x * (width + gapX), y: 12 + y * (height + gapY) })));
  const tall = rows.length * (height + gapY) - gapY + 24;
  const short = (t: string, most_: number) => (t.length > most_ ? t.slice(0, most_ - 1) + '…' : t);
  return (
    <div class="scroll graph" tabIndex={0} role="region" aria-label="Owners">
      <svg width={total} height={tall} viewBox={`0 0 ${total} ${tall}`} role="group" aria-label={edges.map(([a, b]) => `${nodes.find((n) => n.uid === a)?.name} owns ${nodes.find((n) => n.uid === b)?.name}`).join('; ')}>
        {edges.map(([a, b]) => {
          const from = place.get(a);
          const to = place.get(b);
          if (!from || !to) return null;
          const x1 = from.x + width / 2;
          const y1 = from.y + height;
          const x2 = to.x + width / 2;
          return <path class="edge" d={`M${x1} ${y1} C${x1} ${y1 + gapY / 2} ${x2} ${to.y - gapY / 2} ${x2} ${to.y}`} />;
        })}
        {nodes.map((n) => {
          const p = place.get(n.uid)!;
          const box = (
            <g transform={`translate(${p.x} ${p.y})`} class={n.level === 0 ? 'node self' : 'node'}>
              <title>{`${n.kind} ${n.name}`}</title>
              <rect width={width} height={height} rx={6} />
              <text x={12} y={18} class="kind">
                {short(n.kind, 26)}
              </text>
              <text x={12} y={36}>{short(n.name, 24)}</text>
            </g>
          );
          return n.href ? <a href={n.href}>{box}</a> : box;
        })}
      </svg>
      {partial && <p class="quiet">{partial}</p>}
    </div>
  );
}
