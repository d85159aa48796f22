// Builds the page into dist. With --serve [PORT] it serves dist, and builds anew after a change.
import { copyFileSync, mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { context } from 'esbuild';

process.chdir(dirname(fileURLToPath(import.meta.url)));
mkdirSync('dist', { recursive: true });
copyFileSync('src/index.html', 'dist/index.html');
const page = await context({
  entryPoints: ['src/main.tsx'],
  bundle: true,
  format: 'esm',
  target: 'es2022',
  minify: true,
  jsx: 'automatic',
  jsxImportSource: 'preact',
  alias: { react: 'preact/compat' },
  outdir: 'dist',
});
await page.rebuild();
const at = process.argv.indexOf('--serve');
if (at < 0) {
  await page.dispose();
} else {
  await page.watch();
  const { port } = await page.serve({ servedir: 'dist', host: '127.0.0.1', port: Number(process.argv[at + 1] ?? 5173) });
  console.log(`page: http://127.0.0.1:${port}/`);
}
