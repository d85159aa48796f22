// How long a newcomer needs from a clone to an edited object in the console, and how many clicks and fields: make first-run.
//
//   node first.mjs REPOSITORY
//
// Clones REPOSITORY, runs make run there as on a terminal, opens the link that it prints, creates a Flunder and edits it.
// COLD=1 takes an empty build cache and an empty module cache, as on a new machine.
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { hands, launch, needChromium, patience } from './looks.mjs';

needChromium();
const repository = resolve(process.argv[2] ?? '.');
const dir = mkdtempSync(join(tmpdir(), 'first-run-'));
const clone = join(dir, 'annex');
const cold = process.env.COLD ? { GOCACHE: join(dir, 'gocache'), GOMODCACHE: join(dir, 'gomodcache'), GOFLAGS: `${process.env.GOFLAGS ?? ''} -modcacherw`.trim() } : {};
const begun = Date.now();
const at = (what) => console.log(`${((Date.now() - begun) / 1000).toFixed(1).padStart(7)} s  ${what}`);

execFileSync('git', ['clone', '--quiet', repository, clone]);
at('cloned');
// A terminal of its own: the link is for people alone.
const running = spawn('script', ['--quiet', '--return', '--command', 'make run SERVE="--secure-port 0"', '/dev/null'], { cwd: clone, env: { ...process.env, ...cold }, detached: true });
const ended = new Promise((r) => running.on('exit', r));
process.on('exit', () => {
  try {
    process.kill(-running.pid, 'SIGKILL');
  } catch {} // it has ended
  rmSync(dir, { recursive: true, force: true });
});
let printed = '';
const link = await new Promise((found, failed) => {
  running.stdout.on('data', (d) => {
    printed += d;
    const address = printed.match(/https:\S+\/console\/#\S+/)?.[0];
    if (address) found(address);
  });
  running.on('exit', (code) => failed(new Error(`make run has ended with ${code}:\n${printed}`)));
});
at('make run printed a link');

let clicks = 0;
const browser = await launch();
const page = await browser.newPage();
await page.setViewport({ width: 1280, height: 800 });
const { see, press: pressed, label } = hands(page);
const counted = (act) => (...what) => (clicks++, act(...what));
const press = counted(pressed);
const field = counted(label);
try {
  clicks++; // the link
  await page.goto(link, { waitUntil: 'domcontentloaded' });
  await see('wardle', 'main .card');
  at('the console is open');
  await page.locator('main .card ::-p-text(Flunder)').setTimeout(patience.timeout).click();
  clicks++;
  await press('New Flunder', 'link');
  await field('name', 'first');
  await press('Create');
  await see('first was created');
  at('an object is created');
  await press('Edit', 'link');
  await field('flunderReference', 'second');
  await press('Review and save');
  await see('spec.flunderReference', 'dialog .differences');
  clicks++;
  await page.locator('dialog button.primary').click();
  await see('was saved');
  at(`the object is edited, with ${clicks} clicks and fields`);
} catch (error) {
  throw new Error(`${error.message}, at ${page.url()}:\n${await page.evaluate(() => document.body.innerText.slice(0, 2000))}`);
} finally {
  await browser.close();
  running.stdin.write('\x03'); // Ctrl-C
  await ended;
}
