// Package base is the district of leaves: small packages that know neither Kubernetes-style servers nor each other.
//
// It holds files (atomicfile, configfile, filelock, filewatch, secretfile), waiting (await), work (worker for the queues
// of controllers, parallel for the processors), memory and its accountant (budget, yamlsize), values and metadata
// (objects, ordered), errors and messages (apierr, outcome, typo) and cookies of the server's own pages (pagecookie).
//
// It must not hold anything that imports another of our packages.
//
// A request enters budget before its body is read and leaves it when its answer is written; the other packages are
// called from everywhere.
package base
