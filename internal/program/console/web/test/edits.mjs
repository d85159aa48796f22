// Edits in the console, in a headless Chromium: what is shown before a save, who else has changed it, and what
// becomes of an edit that is not saved. make console-test runs it.
//
//   node edits.mjs FOLDER [folder for screenshots]
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { accessible, at, closed, confirmed, evil, field, looked, open, page, patience, press, programs, run, saved, see, serve, signIn, token, turnTo, unharmed, unseen, write, yaml } from './shared.mjs';

const server = await serve('annex');
const { kubectl } = server;

// A kind with what is to be edited: required and optional fields, an enum, lists, and rules.
const properties = {
  note: { type: 'string', description: 'what people should know' },
  amount: { type: 'integer', minimum: 1, maximum: 9, description: 'how many are baked' },
  size: { type: 'string', enum: ['small', 'large'] },
  toppings: { type: 'array', items: { type: 'object', required: ['name'], properties: { name: { type: 'string' }, grams: { type: 'integer' } } }, 'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['name'] },
  words: { type: 'array', items: { type: 'string' } },
};
kubectl(['apply', '-f', '-'], JSON.stringify({
  apiVersion: 'apiextensions.k8s.io/v1', kind: 'CustomResourceDefinition', metadata: { name: 'cakes.shop.example.com' },
  spec: {
    group: 'shop.example.com', scope: 'Namespaced', names: { plural: 'cakes', singular: 'cake', kind: 'Cake' },
    versions: [{ name: 'v1', served: true, storage: true, schema: { openAPIV3Schema: { type: 'object', properties: { spec: { type: 'object', required: ['size'], properties } } } } }],
  },
}));
kubectl(['wait', 'crd/cakes.shop.example.com', '--for=condition=Established', '--timeout=30s']);
kubectl(['create', 'clusterrole', 'baker', '--verb=*', '--resource=cakes.shop.example.com,secrets,configmaps']);
kubectl(['create', 'clusterrolebinding', 'baker', '--clusterrole=baker', '--user=vic']);
const cake = (name, spec = {}, metadata = {}) => JSON.stringify({ apiVersion: 'shop.example.com/v1', kind: 'Cake', metadata: { name, namespace: 'default', ...metadata }, spec: { size: 'small', ...spec } });
const the = (name, path = '{.spec}') => kubectl(['get', 'cake', name, '-o', `jsonpath=${path}`]);
const object = (name, tab = '') => `#/o/shop.example.com/v1/cakes/default/${name}${tab && '/' + tab}`;
const asForm = async () => {
  await page.waitForSelector('.modes', patience);
  if (await page.$('.modes button:first-child[aria-pressed=false]')) await press('Form');
  await page.waitForSelector('.form', patience);
};
const valueIs = (label, value) =>
  page.waitForFunction((l, v) => document.getElementById([...document.querySelectorAll('.form label')].find((e) => e.textContent.replace(' *', '') === l)?.htmlFor)?.value === v, patience, label, value);
// offered is a completion that has been there for long enough to be taken.
const offered = async (text) => {
  await see(text, '.cm-tooltip-autocomplete');
  await page.waitForFunction(() => Date.now() - (globalThis.since ??= Date.now()) > 150, { ...patience, polling: 50 });
  await page.evaluate(() => delete globalThis.since);
};

// copied is the text of a request in a language; shell carries one out as the administrator.
const copied = async (language, within = 'main') => {
  await (await page.waitForFunction((w) => [...document.querySelectorAll(`${w} button`)].find((b) => b.textContent === 'Copy as …'), patience, within)).click();
  await page.locator(`::-p-aria([name="${language}"][role="radio"])`).click();
  const text = await (await page.waitForFunction((l) => document.querySelector(`pre.copied[aria-label="${l}"]`)?.textContent, patience, language)).jsonValue();
  await page.keyboard.press('Escape');
  await page.waitForFunction(() => !document.querySelector('pre.copied'), patience);
  return text;
};
const shell = (text) => {
  const data = join(server.home, 'data');
  const env = { PATH: `${programs}:${process.env.PATH}`, HOME: server.home, KUBECONFIG: join(data, 'kubeconfig'), TOKEN: token.ada, CA: join(data, 'cert', 'ca.crt') };
  return execFileSync('/bin/sh', ['-eu', '-c', text], { encoding: 'utf8', env, stdio: ['pipe', 'pipe', 'pipe'] });
};

const steps = {
  async 'an object that kubectl made is edited without an alarm, after a look at what changes'() {
    kubectl(['apply', '-f', '-'], cake('plain', { amount: 1, note: 'as it was' }));
    await open('/console/', server);
    await signIn(token.ada);
    await at(object('plain', 'edit'));
    await (await field('amount')).fill('2');
    await press('Review and save');
    await see('spec.amount', 'dialog');
    assert.deepEqual(await page.$$eval('dialog .differences li', (all) => all.map((l) => [l.querySelector('.path').textContent, l.querySelector('del').textContent, l.querySelector('ins').textContent])), [['spec.amount', '1', '2']]);
    await see('kubectl-client-side-apply', 'dialog');
    assert.equal(await page.$('dialog input[type=checkbox]'), null);
    assert.equal(await page.$('.problem'), null);
    await accessible('what will change');
    await confirmed();
    assert.equal(the('plain', '{.spec.amount}'), '2');
    const managers = JSON.parse(kubectl(['get', 'cake', 'plain', '-o', 'json', '--show-managed-fields'])).metadata.managedFields;
    const mine = managers.find((m) => m.manager === 'annex-console:ada');
    assert.deepEqual(mine?.fieldsV1, { 'f:spec': { 'f:amount': {} } }, JSON.stringify(managers));
    await at(object('plain'));
    await see('amount: 2', 'pre');
    await unseen('last-applied', 'pre');
  },
  async 'what is not valid is said at its field, before who else manages it'() {
    kubectl(['apply', '--server-side', '--field-manager=pipeline', '--force-conflicts', '-f', '-'], cake('plain', { amount: 3, note: 'as it was' }));
    await at(object('plain', 'edit'));
    await valueIs('amount', '3');
    await (await field('amount')).fill('99');
    await press('Review and save');
    await page.waitForSelector('.labelled.wrong .cause', patience);
    const text = await page.$eval('main', (e) => e.innerText);
    assert.equal(text.match(/less than or equal/g)?.length, 1, text);
    assert.doesNotMatch(text, /pipeline|<nil>/);
    assert.equal(await page.$('dialog'), null);
    await accessible('a mistake');
    // Required fields come first.
    assert.deepEqual((await page.$$eval('.form fieldset legend, .form label', (all) => all.map((l) => l.textContent))).filter((l) => /^(size|amount)/.test(l)), ['size *', 'amount']);
    await (await field('amount')).fill('4');
    await press('Review and save');
    await see('Take over', 'dialog');
    await see('pipeline', 'dialog .take-over');
    assert.equal(await page.$eval('dialog button.primary', (b) => b.disabled), true);
    await looked('take-over');
    await page.locator('dialog .take-over input').click();
    await confirmed();
    assert.equal(the('plain', '{.spec.amount}'), '4');
  },
  async 'two people edit one field: the second chooses, and nothing is overwritten unseen'() {
    kubectl(['apply', '-f', '-'], cake('both', { amount: 1, note: 'first', words: ['a'] }));
    const first = page;
    await at(object('both', 'edit'));
    await (await field('note')).fill('by ada');
    const second = await open('/console/', server);
    await signIn(token.vic);
    await at(object('both', 'edit'));
    await (await field('note')).fill('by vic');
    await (await field('amount')).fill('5');
    await saved();
    turnTo(first);
    await first.bringToFront();
    await press('Review and save');
    await see('Another has changed the same field', 'dialog');
    await see('by vic', 'dialog');
    await see('by ada', 'dialog');
    await see('first', 'dialog');
    assert.equal(the('both', '{.spec.note}'), 'by vic');
    await looked('three-way');
    // Back keeps all of it.
    await press('Back to the edit');
    await closed();
    await valueIs('note', 'by ada');
    await press('Review and save');
    await page.waitForSelector('dialog input[type=radio]', patience);
    await (await page.$$('dialog input[type=radio]'))[1].click();
    await press('Continue');
    // The field is another person's, whose name is said.
    await see('vic (in the console)', 'dialog .take-over');
    await see('spec.amount', 'dialog'); // what has been merged
    assert.deepEqual(await page.$$eval('dialog .differences .path', (all) => all.map((l) => l.textContent)), ['spec.note']);
    await page.locator('dialog .take-over input').click();
    await confirmed();
    assert.equal(the('both', '{.spec.note} {.spec.amount}'), 'by ada 5');
    await second.close();
    turnTo(first);
  },
  async 'what others change in other fields is merged with a note'() {
    await at(object('both', 'edit'));
    await (await field('note')).fill('again');
    kubectl(['patch', 'cake', 'both', '--type=merge', '-p', '{"spec":{"amount":7}}']);
    await see('Others have changed spec.amount since');
    await press('Review and save');
    await see('Meanwhile others have changed spec.amount', 'dialog');
    // Again, while the difference is looked at.
    kubectl(['patch', 'cake', 'both', '--type=merge', '-p', '{"spec":{"words":["b"]}}']);
    await confirmed();
    assert.equal(the('both', '{.spec.note} {.spec.amount} {.spec.words[0]}'), 'again 7 b');
  },
  async 'items of a list are added, changed and taken away'() {
    kubectl(['apply', '-f', '-'], cake('listed', { toppings: [{ name: 'salt', grams: 1 }, { name: 'sugar', grams: 2 }, { name: 'nuts', grams: 3 }], words: ['x', 'y', 'z'] }));
    await at(object('listed', 'edit'));
    await press('YAML');
    const text = await yaml();
    await write(text.replace('grams: 2', 'grams: 20').replace(/ *- grams: 3\n *name: nuts\n/, '').replace('- y\n', '- y2\n'));
    await saved();
    assert.equal(the('listed'), '{"size":"small","toppings":[{"grams":1,"name":"salt"},{"grams":20,"name":"sugar"}],"words":["x","y2","z"]}');
    // Fields of one item are applied, and no others.
    await see('grams: 20', '.cm-content');
    await write((await yaml()).replace('grams: 1\n', 'grams: 10\n'));
    await saved();
    const managers = JSON.parse(kubectl(['get', 'cake', 'listed', '-o', 'json', '--show-managed-fields'])).metadata.managedFields;
    const applied = managers.find((m) => m.manager === 'annex-console:ada' && m.operation === 'Apply');
    assert.deepEqual(applied.fieldsV1, { 'f:spec': { 'f:toppings': { 'k:{"name":"salt"}': { '.': {}, 'f:grams': {}, 'f:name': {} } } } });
  },
  async 'an edit is kept over Back, other pages and a reload, and is discarded when that is wanted'() {
    await at(object('plain', 'edit'));
    await press('YAML');
    await write((await yaml()).replace('note: as it was', '# a comment\n  note: unsaved'));
    await see('kept in this tab');
    await at('#/k/shop.example.com/v1/cakes');
    await see('listed', 'tbody');
    await page.goBack();
    await see('note: unsaved', '.cm-content');
    await page.reload();
    await see('note: unsaved', '.cm-content');
    // What the form changes leaves comments where they are.
    await press('Form');
    await (await field('amount')).fill('8');
    await press('YAML');
    await see('# a comment', '.cm-content');
    await see('amount: 8', '.cm-content');
    await at(object('plain'));
    await see('Edit (draft)', '.tabs');
    await at(object('plain', 'edit'));
    await see('amount: 8', '.cm-content');
    await press('Discard');
    await unseen('unsaved', '.cm-content');
    await page.reload();
    await valueIs('note', 'as it was');
    assert.equal(await page.evaluate(() => Object.keys(sessionStorage).filter((k) => k.startsWith('annex.draft')).length), 0);
  },
  async 'an edit is kept when the login ends in the middle of a save'() {
    await at(object('both', 'edit'));
    await (await field('note')).fill('typed before the login ended');
    await see('kept in this tab');
    // The token is no longer one, as when it has expired.
    await page.evaluate(() => {
      globalThis.fetch = () => Promise.resolve(new Response(JSON.stringify({ kind: 'Status', status: 'Failure', code: 401, reason: 'Unauthorized', message: 'Unauthorized' }), { status: 401, headers: { 'Content-Type': 'application/json' } }));
    });
    await press('Review and save');
    await page.waitForFunction(() => document.querySelector('.problem') || document.body.innerText.includes('Sign in with the token'), patience);
    await page.reload();
    await page.waitForFunction(() => document.querySelector('nav.side') || document.body.innerText.includes('Sign in with the token'), patience);
    if (!(await page.$('nav.side'))) await signIn(token.ada);
    await valueIs('note', 'typed before the login ended');
    await saved();
    assert.equal(the('both', '{.spec.note}'), 'typed before the login ended');
  },
  async 'what is copied does what the page does'() {
    await at('#/k/shop.example.com/v1/cakes?ns=default');
    await see('plain', 'tbody');
    assert.match(shell(await copied('kubectl')), /^both .*\n(.*\n)*plain /m);
    await at('#/k/shop.example.com/v1/cakes?ns=default&q=plain&sort=-name');
    await see('1 object');
    assert.deepEqual(JSON.parse(shell(await copied('kubectl'))).items.map((i) => i.metadata.name), ['plain']);
    assert.deepEqual(JSON.parse(shell(await copied('curl'))).items.map((i) => i.metadata.name), ['plain']);
    assert.match(await copied('Go'), /\/query\/shop.example.com\/v1\/namespaces\/default\/cakes\?q=plain/);
    await at('#/new/shop.example.com/v1/cakes?ns=default');
    await asForm();
    await (await field('name')).fill('copied');
    await (await field('note')).fill("it's $HOME");
    await (await field('size')).fill('large');
    assert.match(shell(await copied('kubectl')), /cake.shop.example.com\/copied created/);
    assert.equal(the('copied'), `{"note":"it's $HOME","size":"large"}`);
    await press('Discard');
    await at(object('copied'));
    await see('large', 'pre');
    assert.match(shell(await copied('kubectl')), /note: it's \$HOME/);
    assert.equal(JSON.parse(shell(await copied('curl'))).metadata.name, 'copied');
    await at(object('copied', 'edit'));
    await asForm();
    await (await field('amount')).fill('3');
    await press('Review and save');
    await page.waitForSelector('dialog .differences', patience);
    await accessible('a difference that can be copied');
    assert.match(shell(await copied('kubectl', 'dialog')), /cake.shop.example.com\/copied serverside-applied/);
    assert.equal(the('copied', '{.spec.amount}'), '3');
    await press('Back to the edit');
    await press('Discard');
    await press('Delete');
    await page.waitForSelector('dialog select', patience);
    assert.match(shell(await copied('kubectl', 'dialog')), /"copied" deleted/);
    await press('Cancel');
    await see('deleted', '.heading');
    // Values of Secrets are in no text.
    await at('#/new/core/v1/secrets?ns=default');
    await see('New Secret', 'h1');
    assert.equal(await page.evaluate(() => [...document.querySelectorAll('button')].some((b) => b.textContent === 'Copy as …')), false);
  },
  async 'a draft of a deleted object makes it anew'() {
    kubectl(['apply', '-f', '-'], cake('brief', { note: 'short' }));
    await at(object('brief', 'edit'));
    await (await field('note')).fill('longer');
    await see('kept in this tab');
    kubectl(['delete', 'cake', 'brief']);
    await see('You have a draft of it');
    await press('Create it anew');
    await see('New Cake', 'h1');
    await press('Create');
    await see('Cake brief was created');
    assert.equal(the('brief', '{.spec.note}'), 'longer');
  },
  async 'YAML is completed, documented and checked by the schema'() {
    await at('#/new/shop.example.com/v1/cakes?ns=default');
    await press('YAML');
    await write('apiVersion: shop.example.com/v1\nkind: Cake\nmetadata:\n  name: typed\n  namespace: default\nspec:\n');
    await page.keyboard.type('  si');
    await offered('size');
    await page.keyboard.press('Enter');
    await offered('large');
    await looked('completion');
    await page.keyboard.type('l');
    await page.waitForFunction(() => document.querySelector('.cm-tooltip-autocomplete li[aria-selected]')?.textContent.includes('large'), patience);
    await offered('large');
    await page.keyboard.press('Enter');
    await see('size: large', '.cm-content');
    await page.keyboard.type('\namo');
    await offered('amount');
    await see('how many are baked', '.cm-completionInfo');
    await page.keyboard.press('Enter');
    await page.keyboard.type('lots');
    await see('One place does not fit the schema');
    await page.waitForSelector('.cm-lint-marker-warning', patience);
    await accessible('the editor');
    const line = await page.evaluateHandle(() => [...document.querySelectorAll('.cm-line span')].find((s) => s.textContent.includes('amount')));
    await line.asElement().hover();
    await see('how many are baked', '.cm-about');
    await page.keyboard.press('Escape');
    // A parse error is named with its line.
    await page.keyboard.type(': [');
    await see('line 8', '.causes');
    await page.waitForFunction(() => [...document.querySelectorAll('button')].find((b) => b.textContent.trim() === 'Create').disabled, patience);
    for (let i = 0; i < 'lots: ['.length; i++) await page.keyboard.press('Backspace');
    await page.keyboard.press('Delete');
    await page.keyboard.type('77');
    await press('Create');
    await see('line 8', '.causes');
    await page.locator('.causes button').click();
    await page.keyboard.press('End');
    await page.keyboard.press('Backspace');
    // Escape, then Tab leaves.
    await page.keyboard.press('Escape');
    await page.keyboard.press('Escape');
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.closest('.cm-editor')), null);
    await press('Create');
    await see('Cake typed was created');
    assert.equal(the('typed'), '{"amount":7,"size":"large"}');
  },
  async 'values of a Secret are hidden, and edited as text'() {
    kubectl(['apply', '-f', '-'], JSON.stringify({ apiVersion: 'v1', kind: 'Secret', metadata: { name: 'pass', namespace: 'default' }, data: { word: Buffer.from('open sesame').toString('base64'), raw: Buffer.from([0, 1, 2, 255]).toString('base64') } }));
    const secret = '#/o/core/v1/secrets/default/pass';
    await at(secret);
    await see('11 bytes', '.secret');
    await unseen('sesame');
    await unseen(Buffer.from('open sesame').toString('base64'));
    await press('Reveal word');
    await see('open sesame', '.secret');
    await looked('secret-revealed');
    await press('Reveal raw');
    await see('It is no text', '.secret');
    await at(secret + '/edit');
    await see('4 bytes, binary', '.form');
    await unseen('sesame', 'main');
    await press('Reveal word');
    await page.locator('.form textarea').fill('open poppy');
    await see('until this page is loaded anew');
    assert.equal(await page.evaluate(() => Object.values(sessionStorage).some((v) => v.includes('poppy') || v.includes(btoa('open poppy')))), false);
    await press('Review and save');
    await see('11 bytes → 10 bytes', 'dialog');
    await unseen('poppy', 'dialog');
    await confirmed();
    assert.equal(Buffer.from(kubectl(['get', 'secret', 'pass', '-o', 'jsonpath={.data.word}']), 'base64').toString(), 'open poppy');
  },
  async 'large objects are edited, and hostile strings stay strings'() {
    kubectl(['create', '-f', '-'], cake('long', { words: Array.from({ length: 2000 }, (_, i) => `word ${i}`) }));
    const big = Array.from({ length: 12_000 }, (_, i) => `line ${i} of a text that is about eighty characters long, so that it is a megabyte`).join('\n');
    kubectl(['create', '-f', '-'], JSON.stringify({ apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'big', namespace: 'default' }, data: { text: big, evil, ['__proto__']: 'polluted' } }));
    const begun = Date.now();
    await at(object('long', 'edit'));
    await see('1 to 50 of 2000 of words');
    const listed = Date.now() - begun;
    const before = Date.now();
    await (await field('words 3')).fill('changed');
    const typedIn = Date.now() - before;
    await saved();
    assert.equal(the('long', '{.spec.words[2]}'), 'changed');
    const opened = Date.now();
    await at('#/o/core/v1/configmaps/default/big/edit');
    await see('text', '.form label');
    await unharmed();
    await press('YAML');
    await see('apiVersion: v1', '.cm-content');
    const shown = Date.now() - opened;
    await page.focus('.cm-content');
    await page.keyboard.press('PageDown');
    await page.keyboard.press('End');
    const keys = Date.now();
    await page.keyboard.type('abc');
    const key = (Date.now() - keys) / 3;
    await see('kept in this tab');
    await press('Review and save');
    await page.waitForSelector('dialog .differences', { timeout: 30_000 });
    await unharmed();
    console.log(`      a list of 2,000: ${listed} ms, a change in it ${typedIn} ms; a ConfigMap of ${(big.length / 1e6).toFixed(1)} MB: ${shown} ms, a key ${key.toFixed(0)} ms`);
    await press('Back to the edit');
    await press('Discard');
  },
  async 'the history shows who changed what, and the way back'() {
    kubectl(['apply', '-f', '-'], cake('past', { amount: 3, note: evil }));
    // Its answers are those of a server that keeps a history.
    await page.evaluate((note) => {
      const real = globalThis.fetch;
      const stored = { apiVersion: 'shop.example.com/v1', kind: 'Cake', metadata: { name: 'past', namespace: 'default', uid: 'u', resourceVersion: '12' }, spec: { size: 'small', amount: 3, note } };
      const before = { ...stored, spec: { ...stored.spec, amount: 2 } };
      globalThis.asked = [];
      globalThis.fetch = async (path, init) => {
        const url = new URL(path, location.href);
        if (!url.pathname.startsWith('/history/')) return real(path, init);
        globalThis.asked.push(`${init.method} ${url.pathname}${url.search} ${init.body ?? ''}`);
        const q = url.searchParams;
        const changed = [{ path: 'spec.amount', from: 2, to: 3 }];
        const items = [
          { revision: '12', time: '2026-11-28T07:00:00.000000Z', operation: 'update', user: 'vic', managers: ['annex-console:vic'], subresource: '', changes: changed, more: false },
          { revision: '11', time: '2026-11-28T06:00:00.000000Z', operation: 'update', user: note, managers: null, subresource: '', changes: [{ path: 'spec.note', to: note }], more: true },
        ];
        const answer = init.method === 'POST' ? before : q.has('at') ? before : q.has('from') ? { from: before, to: stored, changes: changed } : q.get('before') === '11' ? { items: [{ revision: '10', operation: 'create', user: 'ada', managers: ['kubectl'], subresource: '', changes: [], more: false }], since: { revision: '10' } } : { items, since: { revision: '10', time: '2026-11-28T05:00:00.000000Z' }, before: '11' };
        return new Response(JSON.stringify(answer), { status: 200, headers: { 'Content-Type': 'application/json' } });
      };
    }, evil);
    await at(object('past'));
    await see('History', '.tabs');
    await at(object('past', 'history'));
    await see('Kept since', 'main');
    await see('vic (in the console)', '.history');
    assert.equal(await page.$$eval('.history li .differences', (all) => all.length), 2);
    await unharmed();
    await accessible('the history');
    await press('Show older revisions');
    await see('created it', '.history');
    await press('Show revision 11');
    await see('amount: 2', 'dialog');
    await press('Close');
    await page.select('main form label:nth-of-type(1) select', '11');
    await page.select('main form label:nth-of-type(2) select', '12');
    await press('Compare');
    await see('spec.amount', 'dialog');
    await press('Close');
    await press('Undo revision 12');
    await see('spec.amount', 'dialog');
    await accessible('the undo');
    await page.locator('dialog button.primary').click();
    await closed();
    await see('Revision 12 was undone');
    assert.deepEqual((await page.evaluate(() => globalThis.asked)).filter((a) => a.startsWith('POST')), [true, false].map((dryRun) => `POST /history/shop.example.com/v1/namespaces/default/cakes/past?fieldManager=annex-console%3Aada ${JSON.stringify({ undo: '12', dryRun })}`));
    await page.reload();
    await page.waitForSelector('nav.side', patience);
  },
  async 'it is used in the dark, and on a narrow screen'() {
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'dark' }]);
    await page.setViewport({ width: 390, height: 844 });
    for (const [hash, ready] of [[object('plain'), 'pre'], [object('plain', 'edit'), '.form'], ['#/o/core/v1/secrets/default/pass', '.secret'], ['#/new/shop.example.com/v1/cakes?ns=default', '.form']]) {
      await at(hash);
      await (ready === '.form' ? asForm() : page.waitForSelector(ready, patience));
      await accessible(hash);
      const wide = await page.evaluate(() => document.querySelector('main').scrollWidth - document.querySelector('main').clientWidth);
      assert.ok(wide <= 0, `${hash} is ${wide} px too wide`);
    }
    await at(object('plain', 'edit'));
    await asForm();
    await (await field('note')).fill('in the dark');
    await press('Review and save');
    await page.waitForSelector('dialog .differences', patience);
    await accessible('the difference in the dark');
    await press('Back to the edit');
    await press('YAML');
    await see('in the dark', '.cm-content');
    await accessible('the editor in the dark');
    await press('Discard');
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
    await page.setViewport({ width: 1280, height: 800 });
  },
};

await run(steps);
