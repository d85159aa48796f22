package cluster

import (
	"testing"

	"github.com/annexapi/annex/e2e/cluster/kube"
)

// behaviours are the tests of a server of wardle.example.com that has joined a cluster, for upstream's server and
// ours alike.
var behaviours = []struct {
	name string
	test func(*testing.T, *wardle)
}{
	{"AnAdministratorUsesEveryVerb", everyVerb},
	{"AUserHasWhatRolesGive", rolesGive},
	{"NobodyIsRefused", nobodyIsRefused},
	{"AnImpersonatedUserHasWhatTheirRolesGive", impersonated},
	{"FieldsHaveOwners", serverSideApply},
	{"ListsAreTables", tables},
	{"DiscoveryAndExplainKnowTheKinds", discovered},
	{"InformersListByWatching", watchList},
	{"KubectlWatches", kubectlWatches},
	{"LongListsPassTheHost", longLists},
	{"TheHostVerifiesTheServersCertificate", wrongAuthority},
	{"OnlyTheFrontProxySaysWhoAsks", forgedHeaders},
	{"ServiceAccountsHaveWhatRolesGive", serviceAccounts},
	{"TheEndOfANamespaceEndsItsFlunders", namespaceDeletion},
	{"TheHostCollectsGarbageAcrossServers", garbageCollection},
	{"TheHostCountsFlundersInAQuota", quota},
	{"WebhooksOfTheHostApply", webhooks},
	{"ValidatingPoliciesOfTheHostApply", validatingPolicy},
	{"MutatingPoliciesOfTheHostApply", mutatingPolicy},
	{"InformersGoOnAfterTheServersRestart", restarts},
	{"InformersGoOnAfterTheHostsRestart", hostRestarts},
}

// Upstream's own server first: it shows that the cluster and the tests are correct.
func TestSampleAPIServer(t *testing.T) {
	behave(t, startSample, "sample-apiserver", startEtcd(t))
}

func behave(t *testing.T, start startWardle, name string, etcd *kube.Etcd) {
	w := start(t, name, etcd)
	w.register(t)
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) { b.test(t, w) })
	}
}

// startEtcd starts an etcd for servers that keep their objects there.
func startEtcd(t *testing.T) *kube.Etcd {
	t.Helper()
	etcd, err := kube.StartEtcd(ending(t), bin, run, "etcd-"+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Kill)
	return etcd
}
