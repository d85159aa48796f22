// Package controlplane groups the packages of a server that is the API of a whole cluster. Only servers whose
// programs import the public package controlplane link it.
//
// It holds the built-in kinds (builtin, podspec), custom resources (crds), servers behind this one (aggregate), the
// garbage collector (garbage), quotas (quota), storage migrations (migration), webhooks and policies (policies), and
// the objects that every namespace gets (publish).
//
// It must not hold anything that a server without a control plane needs: that is in standalone.
//
// A request enters crds and aggregate when no group of the server itself answers it, and enters policies and quota as
// admission. The controllers are clients: their requests leave by server/loopback and come in at the outermost
// filter.
package controlplane
