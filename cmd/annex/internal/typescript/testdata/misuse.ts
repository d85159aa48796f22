// What the compiler refuses: each statement below has an error, or the compiler complains of the expectation.
import { connect } from './api/index.js';

export async function misuse(): Promise<void> {
  const { widgets, shelves } = connect().shop.v1;
  // @ts-expect-error: objects are in a namespace
  await widgets.get('a');
  // @ts-expect-error: the field does not exist
  await widgets.query({ sortBy: 'spec.colour' });
  // @ts-expect-error: the field does not sort
  await widgets.query({ sortBy: 'spec.size' });
  // @ts-expect-error: the field has numbers
  await widgets.query({ where: { 'spec.replicas': 'many' } });
  // @ts-expect-error: numbers have no parts
  await widgets.query({ where: { 'spec.replicas': { contains: '1' } } });
  // @ts-expect-error: a part has a name
  await widgets.in('default').create({ metadata: { name: 'a' }, spec: { parts: [{ count: 1 }] } });
  // @ts-expect-error: the field is a number
  await widgets.in('default').create({ metadata: { name: 'a' }, spec: { replicas: '1' } });
  // @ts-expect-error: another kind
  await widgets.in('default').create({ kind: 'Shelf', metadata: { name: 'a' } });
  // @ts-expect-error: an action has a request
  await widgets.in('default').actions.resizing('a');
  // @ts-expect-error: shelves have no status
  await shelves.status.get('s');
}
