package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

const (
	// maxExpanded is the maximum number of combinations of verb, group, resource and name of a rule for which each
	// combination is indexed. Rules written by people have fewer; a rule with more is indexed by its resources.
	maxExpanded = 1024
	// maxIndexed bounds the combinations of all rules; one takes about 150 bytes. Rules beyond it are also indexed by
	// their resources, which takes memory proportional to their text only.
	maxIndexed = 1 << 20
)

// question is a query for the rules that allow a request.
type question struct {
	verb string
	// nonResource selects path, which may be a pattern that ends with a star. Otherwise the fields below path are
	// used.
	nonResource bool
	path        string

	group    string
	resource string // with the subresource: pods/log
	// anyParent is the subresource of all resources: */log. It is empty if there is no subresource.
	anyParent string
	// name is the name of the object if named is set; it may be empty, as in a create. Without named, the question is
	// about all objects, which a rule with names never allows.
	name  string
	named bool
}

// index finds the roles whose rules allow a request. Roles are numbers.
type index struct {
	limit     int // maxIndexed, except in tests
	resources map[resourceKey]*holders
	names     int // members of all holders.named
	paths     map[pathKey]set
	prefixes  map[pathKey]set // of patterns, without their trailing stars
	lengths   []length        // lengths of the keys in prefixes, ascending
	// broad and broadPaths are the rules with too many combinations.
	broad      map[string][]*broadRule // by resource
	broadPaths []*broadRule
}

type resourceKey struct{ verb, group, resource string }

type pathKey struct{ verb, path string }

// holders are the roles that allow a verb on a resource: all for all objects, named for single names.
type holders struct {
	all   set
	named map[string]set
}

type length struct{ bytes, prefixes int }

// broadRule is a rule that is not expanded. Its lists are sorted.
type broadRule struct {
	role                            set // a set of one role
	verbs, groups, resources, names []string
	paths                           []string // in the rule's order
}

func newIndex() *index {
	return &index{
		limit:     maxIndexed,
		resources: map[resourceKey]*holders{},
		paths:     map[pathKey]set{},
		prefixes:  map[pathKey]set{},
		broad:     map[string][]*broadRule{},
	}
}

// add indexes the rules of a role that has no rules in the index. The result has to be passed to remove, together
// with the same rules.
func (x *index) add(role uint32, rules []rbacv1.PolicyRule) (broad []*broadRule) {
	for i := range rules {
		rule := &rules[i]
		if n := combinations(rule); n > maxExpanded || len(x.resources)+x.names+len(x.paths)+len(x.prefixes)+n > x.limit {
			b := newBroadRule(role, rule)
			for _, resource := range b.resources {
				x.broad[resource] = append(x.broad[resource], b)
			}
			if len(b.paths) > 0 {
				x.broadPaths = append(x.broadPaths, b)
			}
			broad = append(broad, b)
			continue
		}
		for _, verb := range rule.Verbs {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					x.addResource(resourceKey{verb, group, resource}, rule.ResourceNames, role)
				}
			}
			for _, path := range rule.NonResourceURLs {
				x.addPath(verb, path, role)
			}
		}
	}
	return broad
}

func (x *index) addResource(key resourceKey, names []string, role uint32) {
	h := x.resources[key]
	if h == nil {
		h = &holders{}
		x.resources[key] = h
	}
	if len(names) == 0 {
		h.all.add(role)
	}
	for _, name := range names {
		if h.named == nil {
			h.named = map[string]set{}
		}
		roles, ok := h.named[name]
		if !ok {
			x.names++
		}
		roles.add(role)
		h.named[name] = roles
	}
}

func (x *index) addPath(verb, path string, role uint32) {
	prefix, pattern := prefixOf(path)
	if !pattern {
		key := pathKey{verb, path}
		roles := x.paths[key]
		roles.add(role)
		x.paths[key] = roles
		return
	}
	key := pathKey{verb, prefix}
	roles, ok := x.prefixes[key]
	if !ok {
		i, same := x.searchLength(len(prefix))
		if !same {
			x.lengths = slices.Insert(x.lengths, i, length{bytes: len(prefix)})
		}
		x.lengths[i].prefixes++
	}
	roles.add(role)
	x.prefixes[key] = roles
}

func (x *index) searchLength(bytes int) (int, bool) {
	return slices.BinarySearchFunc(x.lengths, bytes, func(l length, bytes int) int { return l.bytes - bytes })
}

// remove undoes add.
func (x *index) remove(role uint32, rules []rbacv1.PolicyRule, broad []*broadRule) {
	for _, b := range broad {
		for _, resource := range b.resources {
			left := without(x.broad[resource], b)
			if len(left) == 0 {
				delete(x.broad, resource)
			} else {
				x.broad[resource] = left
			}
		}
		x.broadPaths = without(x.broadPaths, b)
	}
	for i := range rules {
		rule := &rules[i]
		if combinations(rule) > maxExpanded {
			continue
		}
		for _, verb := range rule.Verbs {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					x.removeResource(resourceKey{verb, group, resource}, rule.ResourceNames, role)
				}
			}
			for _, path := range rule.NonResourceURLs {
				x.removePath(verb, path, role)
			}
		}
	}
}

func without(rules []*broadRule, rule *broadRule) []*broadRule {
	return slices.DeleteFunc(rules, func(r *broadRule) bool { return r == rule })
}

func (x *index) removeResource(key resourceKey, names []string, role uint32) {
	h := x.resources[key]
	if h == nil {
		return
	}
	if len(names) == 0 {
		h.all.remove(role)
	}
	for _, name := range names {
		roles, ok := h.named[name]
		if !ok {
			continue
		}
		if roles.remove(role); roles == nil {
			delete(h.named, name)
			x.names--
		} else {
			h.named[name] = roles
		}
	}
	if h.all == nil && len(h.named) == 0 {
		delete(x.resources, key)
	}
}

func (x *index) removePath(verb, path string, role uint32) {
	prefix, pattern := prefixOf(path)
	key, in := pathKey{verb, prefix}, x.prefixes
	if !pattern {
		in = x.paths
	}
	roles, ok := in[key]
	if !ok {
		return
	}
	if roles.remove(role); roles != nil {
		in[key] = roles
		return
	}
	delete(in, key)
	if !pattern {
		return
	}
	i, _ := x.searchLength(len(prefix))
	if x.lengths[i].prefixes--; x.lengths[i].prefixes == 0 {
		x.lengths = slices.Delete(x.lengths, i, i+1)
	}
}

// prefixOf returns the prefix of the paths that a pattern matches. A path without a trailing star matches only
// itself.
func prefixOf(path string) (prefix string, pattern bool) {
	if !strings.HasSuffix(path, "*") {
		return path, false
	}
	return strings.TrimRight(path, "*"), true
}

// combinations returns the number of index entries of a rule, or a number above maxExpanded.
func combinations(rule *rbacv1.PolicyRule) int {
	n := len(rule.Verbs)
	for _, factor := range []int{len(rule.APIGroups), len(rule.Resources), max(1, len(rule.ResourceNames))} {
		if n *= factor; n > maxExpanded {
			return n
		}
	}
	if len(rule.NonResourceURLs) > maxExpanded {
		return len(rule.NonResourceURLs)
	}
	return n + len(rule.Verbs)*len(rule.NonResourceURLs)
}

func newBroadRule(role uint32, rule *rbacv1.PolicyRule) *broadRule {
	list := func(values []string) []string { return slices.Compact(slices.Sorted(slices.Values(values))) }
	return &broadRule{
		role: single(role), verbs: list(rule.Verbs), groups: list(rule.APIGroups), resources: list(rule.Resources),
		names: list(rule.ResourceNames), paths: rule.NonResourceURLs,
	}
}

// allows reports whether the rule allows q, given that it includes q's resource.
func (b *broadRule) allows(q *question) bool {
	if !hasOrAll(b.verbs, q.verb) {
		return false
	}
	if !q.nonResource {
		return hasOrAll(b.groups, q.group) && (len(b.names) == 0 || q.named && has(b.names, q.name))
	}
	return slices.ContainsFunc(b.paths, func(path string) bool {
		prefix, pattern := prefixOf(path)
		return path == q.path || pattern && strings.HasPrefix(q.path, prefix)
	})
}

func has(sorted []string, value string) bool {
	_, ok := slices.BinarySearch(sorted, value)
	return ok
}

func hasOrAll(sorted []string, value string) bool {
	return has(sorted, value) || has(sorted, rbacv1.VerbAll)
}

// find appends the sets of roles that allow q. The sets may overlap and belong to the index.
func (x *index) find(q *question, found []set) []set {
	verbs := [...]string{q.verb, rbacv1.VerbAll}
	if q.nonResource {
		for _, verb := range verbs {
			found = x.findPath(verb, q.path, found)
		}
		return withBroad(found, x.broadPaths, q)
	}
	resources := [...]string{q.resource, rbacv1.ResourceAll, q.anyParent}
	asked := resources[:]
	if q.anyParent == "" {
		asked = resources[:2]
	}
	for _, resource := range asked {
		for _, group := range [...]string{q.group, rbacv1.APIGroupAll} {
			for _, verb := range verbs {
				h := x.resources[resourceKey{verb, group, resource}]
				if h == nil {
					continue
				}
				if h.all != nil {
					found = append(found, h.all)
				}
				if q.named {
					if roles, ok := h.named[q.name]; ok {
						found = append(found, roles)
					}
				}
			}
		}
		found = withBroad(found, x.broad[resource], q)
	}
	return found
}

func (x *index) findPath(verb, path string, found []set) []set {
	if roles, ok := x.paths[pathKey{verb, path}]; ok {
		found = append(found, roles)
	}
	for _, l := range x.lengths {
		if l.bytes > len(path) {
			break
		}
		if roles, ok := x.prefixes[pathKey{verb, path[:l.bytes]}]; ok {
			found = append(found, roles)
		}
	}
	return found
}

func withBroad(found []set, rules []*broadRule, q *question) []set {
	for _, b := range rules {
		if b.allows(q) {
			found = append(found, b.role)
		}
	}
	return found
}
