package plugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/annexapi/annex/internal/base/typo"
)

// errUnknown is a word that names no kind.
var errUnknown = errors.New("no kind of the server")

// find returns the resource that the word names and has accepts. If it names several, the user has to add the group.
// why names the requirement of has, as in "logs".
func (p *plugin) find(word, why string, has func(resource) bool) (resource, error) {
	found, err := p.match(word, has)
	if err != nil {
		return resource{}, err
	}
	if len(found) == 0 && p.server.refresh() {
		if found, err = p.match(word, has); err != nil {
			return resource{}, err
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return resource{}, misuse("%q is in several groups: use %s", word, strings.Join(fullNames(found), " or "))
	}
	all, err := p.server.resources()
	if err != nil {
		return resource{}, err
	}
	for _, r := range all {
		switch {
		case r.isCalled(word) && r.named(why) != nil:
			return resource{}, misuse("%s of %s is a subresource of another form: use %s call %s", why, r.full(), p.called(), why)
		case r.isCalled(word):
			return resource{}, misuse("%s have no %s: %s", r.full(), why, those(all, why, has))
		}
	}
	return resource{}, misuse("%q: %w%s", word, errUnknown, p.instead(word, all))
}

func (p *plugin) match(word string, has func(resource) bool) ([]resource, error) {
	all, err := p.server.resources()
	if err != nil {
		return nil, err
	}
	var found []resource
	for _, r := range all {
		if r.isCalled(word) && has(r) {
			found = append(found, r)
		}
	}
	return found, nil
}

// instead returns the end of a message about an unknown kind: a suggestion, or the known kinds.
func (p *plugin) instead(word string, all []resource) string {
	var names []string
	for _, r := range all {
		names = append(names, r.Resource, r.singular, strings.ToLower(r.kind))
	}
	switch nearest := typo.Nearest(word, names); {
	case nearest != "":
		return fmt.Sprintf(": did you mean %s?", nearest)
	case p.server.missing != nil:
		return fmt.Sprintf(", unless it belongs to a group whose discovery failed: %v", p.server.missing)
	}
	return fmt.Sprintf("; %s lists the kinds", p.called())
}

func fullNames(all []resource) []string {
	var names []string
	for _, r := range all {
		names = append(names, r.full())
	}
	return names
}

// those lists the resources that do meet the requirement.
func those(all []resource, why string, has func(resource) bool) string {
	var found []resource
	for _, r := range all {
		if has(r) {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return "no kind of the server has"
	}
	return strings.Join(fullNames(found), ", ") + " have"
}

// object returns the object that the words name: as KIND/NAME, as KIND NAME or, if has accepts only one kind, as
// NAME.
func (p *plugin) object(words []string, why string, has func(resource) bool) (object, error) {
	var kind, name string
	switch {
	case len(words) == 1 && strings.Contains(words[0], "/"):
		kind, name, _ = strings.Cut(words[0], "/")
	case len(words) == 2 && !strings.Contains(words[0], "/"):
		kind, name = words[0], words[1]
	case len(words) == 1:
		all, err := p.server.resources()
		if err != nil {
			return object{}, err
		}
		var only []resource
		for _, r := range all {
			if r.isCalled(words[0]) {
				return object{}, misuse("no object: pass %s/NAME", words[0])
			}
			if has(r) {
				only = append(only, r)
			}
		}
		if len(only) != 1 {
			return object{}, misuse("%q is not an object: use KIND/NAME; %s %s", words[0], those(all, why, has), why)
		}
		kind, name = only[0].full(), words[0]
	case len(words) == 0:
		return object{}, misuse("no object: pass KIND/NAME")
	default:
		return object{}, misuse("%s: pass one object, as KIND/NAME or KIND NAME", strings.Join(words, " "))
	}
	r, err := p.find(kind, why, has)
	if err != nil {
		return object{}, err
	}
	if bad := content.IsPathSegmentName(name); name == "" || len(bad) > 0 {
		return object{}, misuse("%q is not an object name: use %s/NAME", name, kind)
	}
	namespace := ""
	if r.namespaced {
		if namespace, _, err = p.config.ToRawKubeConfigLoader().Namespace(); err != nil {
			return object{}, err
		}
	}
	return object{r, namespace, name}, nil
}

// hasRole accepts resources with a subresource of that role.
func hasRole(wanted role) func(resource) bool {
	return func(r resource) bool { return r.with(wanted) != nil }
}

// hasName accepts resources with an action or a view of that name.
func hasName(name string) func(resource) bool {
	return func(r resource) bool { return r.named(name) != nil }
}

// watchable reports whether wait can wait for a kind.
func watchable(r resource) bool {
	return slices.Contains(r.verbs, "watch") && slices.Contains(r.verbs, "list")
}
