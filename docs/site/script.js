// The search, the theme, the menu and the copy buttons. Every page can be read without it.
'use strict';

const root = document.body.dataset.root;
const byId = (id) => document.getElementById(id);

// A browser may forbid the storage to pages of a folder.
function remember(key, value) {
	try {
		if (value !== undefined) localStorage.setItem(key, value);
		return localStorage.getItem(key);
	} catch {
		return null;
	}
}

const html = document.documentElement;
const theme = remember('theme');
if (theme) html.dataset.theme = theme;
byId('theme').addEventListener('click', () => {
	const dark = html.dataset.theme ? html.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
	html.dataset.theme = dark ? 'light' : 'dark';
	remember('theme', html.dataset.theme);
});

byId('menu').addEventListener('click', (event) => {
	const open = byId('nav').classList.toggle('open');
	event.currentTarget.setAttribute('aria-expanded', String(open));
});

for (const heading of document.querySelectorAll('h2[id], h3[id]')) {
	const link = document.createElement('a');
	link.className = 'anchor';
	link.href = '#' + heading.id;
	link.textContent = '#';
	link.setAttribute('aria-label', 'Link to ' + heading.textContent);
	heading.append(link);
}

for (const block of document.querySelectorAll('pre')) {
	if (!navigator.clipboard) break;
	const button = document.createElement('button');
	button.type = 'button';
	button.className = 'copy';
	button.textContent = 'Copy';
	button.addEventListener('click', async () => {
		const commands = [...block.querySelectorAll('.command')].map((line) => line.textContent);
		await navigator.clipboard.writeText(commands.length ? commands.join('\n') : block.querySelector('code').textContent);
		button.textContent = 'Copied';
		setTimeout(() => { button.textContent = 'Copy'; }, 1500);
	});
	block.append(button);
}

byId('nav').querySelector('[aria-current]')?.scrollIntoView({ block: 'center' });

// The search reads its index with the first key.
const input = byId('search');
const list = byId('found');
let loading;
function load() {
	loading ??= new Promise((done, failed) => {
		const script = document.createElement('script');
		script.src = root + 'index.js';
		script.onload = () => {
			const index = window.siteIndex;
			index.sorted = Object.keys(index.w).sort();
			done(index);
		};
		script.onerror = failed;
		document.head.append(script);
	});
	return loading;
}

// The sections with a word, or with words that it begins, with their weights.
function sections(index, word) {
	const found = new Map();
	let low = 0;
	for (let high = index.sorted.length; low < high;) {
		const middle = (low + high) >> 1;
		if (index.sorted[middle] < word) low = middle + 1; else high = middle;
	}
	for (; low < index.sorted.length && index.sorted[low].startsWith(word); low++) {
		const exact = index.sorted[low] === word;
		let number = 0;
		for (const step of index.w[index.sorted[low]]) {
			number += Math.abs(step);
			const weight = (step < 0 ? 8 : 1) * (exact ? 2 : 1);
			found.set(number, Math.max(found.get(number) ?? 0, weight));
		}
	}
	return found;
}

function search(index, query) {
	const words = query.toLowerCase().split(/[^\p{L}\p{N}\-]+/u).map((word) => word.replace(/^-+|-+$/g, '')).filter((word) => word);
	if (!words.length) return [];
	let all;
	for (const word of words) {
		const found = sections(index, word);
		if (!all) {
			all = found;
			continue;
		}
		for (const [number, weight] of all) {
			if (found.has(number)) all.set(number, weight + found.get(number)); else all.delete(number);
		}
	}
	return [...all].map(([number, weight]) => {
		const [title, heading, address, text] = index.s[number - 1];
		// A page of decisions or of the changelog is rarely meant.
		return { title, heading, address, text, weight: weight + (heading ? 0 : 1) - (/decisions|CHANGELOG/.test(address) ? 6 : 0) };
	}).sort((a, b) => b.weight - a.weight).slice(0, 20);
}

let selected = -1;
function select(number) {
	const items = list.querySelectorAll('[role="option"]');
	if (!items.length) return;
	selected = (number + items.length) % items.length;
	items.forEach((item, i) => item.setAttribute('aria-selected', String(i === selected)));
	items[selected].scrollIntoView({ block: 'nearest' });
	input.setAttribute('aria-activedescendant', items[selected].id);
}

function show(open) {
	list.hidden = !open;
	input.setAttribute('aria-expanded', String(open));
	if (!open) input.removeAttribute('aria-activedescendant');
}

async function answer() {
	const query = input.value;
	if (!query.trim()) return show(false);
	const index = await load();
	if (query !== input.value) return;
	const found = search(index, query);
	list.replaceChildren(...found.map((one, i) => {
		const item = document.createElement('li');
		item.id = 'found-' + i;
		item.setAttribute('role', 'option');
		item.dataset.href = root + one.address;
		const title = document.createElement('strong');
		title.textContent = one.heading ? one.title + ' › ' + one.heading : one.title;
		const text = document.createElement('small');
		text.textContent = one.text;
		item.append(title, text);
		item.addEventListener('click', () => { location.href = item.dataset.href; show(false); });
		return item;
	}));
	if (!found.length) {
		const none = document.createElement('li');
		none.textContent = 'Nothing has all of these words.';
		list.append(none);
	}
	selected = -1;
	show(true);
	select(0);
}

input.addEventListener('focus', load);
input.addEventListener('input', answer);
input.addEventListener('keydown', (event) => {
	if (event.key === 'ArrowDown') select(selected + 1);
	else if (event.key === 'ArrowUp') select(selected - 1);
	else if (event.key === 'Enter') list.querySelector('[aria-selected="true"]')?.click();
	else if (event.key === 'Escape') { input.value = ''; show(false); input.blur(); } else return;
	event.preventDefault();
});
document.addEventListener('click', (event) => { if (!event.target.closest('.search')) show(false); });
document.addEventListener('keydown', (event) => {
	if (event.key === '/' && !event.ctrlKey && !event.metaKey && !event.altKey && !/INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName)) {
		event.preventDefault();
		input.focus();
	}
});
