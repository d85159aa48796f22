package sequences

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// settle waits until the controllers have nothing more to do in the sequence's two namespaces.
func (s *server) settle(ctx context.Context) error {
	var why string
	err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var err error
		why, err = s.unsettled(ctx)
		return why == "", err
	})
	if err != nil {
		return fmt.Errorf("the controllers have not settled: %s: %w", why, err)
	}
	return nil
}

// unsettled returns the first outstanding task.
func (s *server) unsettled(ctx context.Context) (string, error) {
	var all []metav1.PartialObjectMetadata
	for _, k := range kinds {
		var list metav1.PartialObjectMetadataList
		if _, err := s.get(ctx, k.path, asMetadatas, &list); err != nil {
			return "", err
		}
		for i := range list.Items {
			list.Items[i].Kind = k.kind
		}
		all = append(all, list.Items...)
	}
	for _, o := range all {
		if why := waits(o, all); why != "" {
			return fmt.Sprintf("%s %s %s", o.Kind, o.Name, why), nil
		}
	}
	var beside struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct{ Finalizers []string }
	}
	code, err := s.get(ctx, "/api/v1/namespaces/{ns}-a", asJSON, &beside)
	if err != nil || code == http.StatusNotFound || beside.DeletionTimestamp == nil ||
		len(beside.Finalizers)+len(beside.Spec.Finalizers) > 0 && !slices.Contains(beside.Spec.Finalizers, "kubernetes") {
		return "", err
	}
	return "the namespace is being deleted", nil
}

// waits returns the garbage collector's outstanding task for an object.
func waits(o metav1.PartialObjectMetadata, all []metav1.PartialObjectMetadata) string {
	if o.DeletionTimestamp == nil {
		for _, owner := range o.OwnerReferences {
			if !slices.ContainsFunc(all, func(p metav1.PartialObjectMetadata) bool { return p.UID == owner.UID }) {
				return "has an owner that is absent"
			}
		}
		return ""
	}
	if slices.Contains(o.Finalizers, metav1.FinalizerOrphanDependents) {
		return "orphans its dependents"
	}
	if !slices.Contains(o.Finalizers, metav1.FinalizerDeleteDependents) {
		return ""
	}
	blocked := false
	for _, p := range all {
		for _, owner := range p.OwnerReferences {
			if owner.UID != o.UID {
				continue
			}
			if p.DeletionTimestamp == nil {
				return "deletes its dependent " + p.Name
			}
			blocked = blocked || owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion
		}
	}
	if !blocked {
		return "has no dependents left"
	}
	return ""
}

func (s *server) get(ctx context.Context, path, accept string, into any) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.host+s.expand(path), nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Accept", accept)
	response, err := s.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	return response.StatusCode, json.NewDecoder(response.Body).Decode(into)
}
