package doctor

import (
	"context"
	"fmt"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"
)

// Repair is a safe repair: the creation of a missing binding. Certificates, Services and existing objects are not
// changed.
type Repair struct {
	APIService string
	Link       string
	// Command is the shell command with the same effect.
	Command string

	object runtime.Object
}

// Repairs returns the repairs of broken links. A binding that several APIServices of one server lack is returned
// once.
func Repairs(diagnoses []Diagnosis) []Repair {
	var repairs []Repair
	known := map[string]bool{}
	for _, d := range diagnoses {
		for _, f := range d.Findings {
			if f.State == Broken && f.fix != nil && !known[f.Repair] {
				known[f.Repair] = true
				repairs = append(repairs, Repair{d.APIService, f.Link, f.Repair, f.fix})
			}
		}
	}
	return repairs
}

// YAML returns the object that Apply creates.
func (r Repair) YAML() string {
	text, err := yaml.Marshal(r.object)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Apply creates the object. With dryRun the cluster only checks the request.
func (r Repair) Apply(ctx context.Context, options Options, dryRun bool) error {
	options.setDefaults()
	h, err := connect(ctx, options)
	if err != nil {
		return err
	}
	return h.apply(ctx, r, dryRun)
}

func (h *host) apply(ctx context.Context, r Repair, dryRun bool) error {
	create := metav1.CreateOptions{FieldManager: "annex-doctor"}
	if dryRun {
		create.DryRun = []string{metav1.DryRunAll}
	}
	var err error
	switch o := r.object.(type) {
	case *rbacv1.RoleBinding:
		_, err = h.core.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, create)
	case *rbacv1.ClusterRoleBinding:
		_, err = h.core.RbacV1().ClusterRoleBindings().Create(ctx, o, create)
	}
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("repair the %s of %s: another binding has the same name: choose another "+
			"name in: %s", r.Link, r.APIService, r.Command)
	}
	if err != nil {
		return fmt.Errorf("repair the %s of %s: %w", r.Link, r.APIService, err)
	}
	return nil
}

// settling bounds the wait until a repair takes effect.
const settling = 10 * time.Second

// ExamineRepaired examines until the repaired links are whole, for at most ten seconds, since the cluster caches
// permissions. A server may take longer to notice the repair.
func ExamineRepaired(ctx context.Context, options Options, repaired []Repair) ([]Diagnosis, error) {
	var diagnoses []Diagnosis
	var failed error
	bounded, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	err := wait.PollUntilContextCancel(bounded, 200*time.Millisecond, true, func(context.Context) (bool, error) {
		diagnoses, failed = Examine(ctx, options)
		if failed != nil {
			return false, failed
		}
		for _, r := range Repairs(diagnoses) {
			for _, done := range repaired {
				if r.Command == done.Command {
					return false, nil
				}
			}
		}
		return true, nil
	})
	if failed != nil || ctx.Err() != nil {
		return nil, err
	}
	return diagnoses, nil
}
