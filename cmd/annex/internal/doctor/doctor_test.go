package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// examined walks the whole chain in a world.
func examined(t *testing.T, w *world, options Options) Diagnosis {
	t.Helper()
	if options.Names == nil {
		options.Names = []string{name}
	}
	if options.Patience == 0 {
		options.Patience = 5 * time.Second
	}
	options.Slow = w.slow
	options.setDefaults()
	h, err := newHost(w.start(), options.Patience)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.greet(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err := h.examine(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 {
		t.Fatalf("%d diagnoses", len(found))
	}
	return found[0]
}

func (d *Diagnosis) link(name string) Finding {
	return d.Findings[slices.IndexFunc(d.Findings, func(f Finding) bool { return f.Link == name })]
}

func (d *Diagnosis) text(all bool) string {
	var b bytes.Buffer
	d.Print(&b, all)
	return b.String()
}

func TestExamine_healthyServer(t *testing.T) {
	d := examined(t, newWorld(t), Options{})
	for _, f := range d.Findings {
		if f.State != OK {
			t.Errorf("%s is %s: %s", f.Link, f.State, f.Message)
		}
	}
	if d.First() != nil || len(d.Findings) != len(chain()) {
		t.Errorf("%+v", d)
	}
}

func TestExamine_everyFault(t *testing.T) {
	soon, past, future := time.Now().Add(10*time.Hour), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	for what, c := range map[string]struct {
		fault  func(t *testing.T, w *world)
		link   string
		state  State
		reason string
		says   []string // fragments of its printed text
	}{
		"the APIService is misspelled": {
			func(t *testing.T, w *world) { w.others(w.apiService("v1.shops.example.com", w.spec)) },
			linkAPIService, OK, "", nil,
		},
		"another server has a version of the group": {
			func(t *testing.T, w *world) {
				w.others(w.apiService("v2.shop.example.com", object{"group": "shop.example.com", "version": "v2",
					"service": object{"namespace": "other", "name": "api"}}))
			},
			linkPriorities, Broken, ReasonGroupClaimedTwice, []string{"v2.shop.example.com", "the Service other/api", "kubectl delete " +
				"apiservice v2.shop.example.com"},
		},
		"the API server has a version of the group": {
			func(t *testing.T, w *world) {
				w.others(w.apiService("v2.shop.example.com", object{"group": "shop.example.com", "version": "v2"}))
			},
			linkPriorities, Broken, ReasonGroupClaimedTwice, []string{"a CustomResourceDefinition"},
		},
		"a CustomResourceDefinition of the same version": {
			func(t *testing.T, w *world) {
				w.answers["/apis/apiextensions.k8s.io/v1/customresourcedefinitions"] = items(object{
					"metadata": object{"name": "dogs.shop.example.com"}, "spec": object{"group": "shop.example.com",
						"versions": []object{{"name": "v1", "served": true}}},
				})
			},
			linkPriorities, Broken, ReasonCustomResourceClash, []string{"dogs.shop.example.com", "kubectl delete apiservice " + name},
		},
		"resources of the same name and priority": {
			func(t *testing.T, w *world) {
				w.others(w.apiService("v1.zoo.example.com", object{"group": "zoo.example.com", "version": "v1", "groupPriorityMinimum": 1000}))
				w.answers["/apis"] = discovery(group("zoo.example.com", "cats"), group("shop.example.com", "cats"))
			},
			linkPriorities, Broken, ReasonPriorityClash, []string{"zoo.example.com also has resources named cats",
				`{"spec":{"groupPriorityMinimum":999}}`},
		},
		"a built-in resource loses its name": {
			func(t *testing.T, w *world) {
				builtIn := w.apiService("v1.apps", object{"group": "apps", "version": "v1", "groupPriorityMinimum": 500})
				builtIn["metadata"].(object)["labels"] = object{"kube-aggregator.kubernetes.io/automanaged": "onstart"}
				w.others(builtIn)
				w.answers["/apis"] = discovery(group("apps", "cats"), group("shop.example.com", "cats"))
			},
			linkPriorities, Broken, ReasonPriorityClash, []string{"a built-in resource", `{"spec":{"groupPriorityMinimum":499}}`},
		},
		"an abbreviation of the same priority": {
			func(t *testing.T, w *world) {
				w.others(w.apiService("v1.zoo.example.com", object{"group": "zoo.example.com", "version": "v1", "groupPriorityMinimum": 1000}))
				zoo := group("zoo.example.com", "felines")
				zoo["versions"].([]object)[0]["resources"].([]object)[0]["shortNames"] = []string{"cat"}
				w.answers["/apis"] = discovery(zoo, group("shop.example.com", "cats"))
			},
			linkPriorities, Doubtful, ReasonPriorityClash, []string{"zoo.example.com also has resources named cat"},
		},
		"a resource of a lower priority": {
			func(t *testing.T, w *world) {
				w.others(w.apiService("v1.zoo.example.com", object{"group": "zoo.example.com", "version": "v1", "groupPriorityMinimum": 2000}))
				w.answers["/apis"] = discovery(group("zoo.example.com", "cats"), group("shop.example.com", "cats"))
			},
			linkPriorities, OK, "", nil,
		},
		"an alpha version is preferred": {
			func(t *testing.T, w *world) {
				w.others(w.apiService("v1alpha1.shop.example.com", object{"group": "shop.example.com", "version": "v1alpha1",
					"groupPriorityMinimum": 1000, "versionPriority": 20, "service": w.spec["service"]}))
			},
			linkPriorities, Doubtful, ReasonPriorityClash, []string{"prefer v1alpha1", `{"spec":{"versionPriority":21}}`},
		},
		"priorities of the group that differ": {
			func(t *testing.T, w *world) {
				w.others(w.apiService("v1alpha1.shop.example.com", object{"group": "shop.example.com", "version": "v1alpha1",
					"groupPriorityMinimum": 2000, "versionPriority": 1, "service": w.spec["service"]}))
			},
			linkPriorities, Doubtful, ReasonPriorityClash, []string{"the highest value applies", `{"spec":{"groupPriorityMinimum":2000}}`},
		},
		"no Service": {
			func(t *testing.T, w *world) {
				w.answers["/api/v1/namespaces/shop/services/api"] = http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
					failure(response, http.StatusNotFound, "gone")
				})
				w.answers["/api/v1/namespaces/shop/services"] = items(object{"metadata": object{"name": "apis"}})
			},
			linkService, Broken, ReasonServiceNotFound, []string{"the Services there: apis", `"name":"SERVICE"`},
		},
		"no namespace": {
			func(t *testing.T, w *world) {
				w.answers["/api/v1/namespaces/shop/services/api"] = http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
					failure(response, http.StatusNotFound, "gone")
				})
				delete(w.answers, "/api/v1/namespaces/shop")
			},
			linkService, Broken, ReasonServiceNotFound, []string{"the namespace does not exist: shop"},
		},
		"another port": {
			func(t *testing.T, w *world) { w.spec["service"].(object)["port"] = 1 },
			linkService, Broken, ReasonServicePortMissing, []string{"the port 1, which the Service does not have"},
		},
		"a headless Service": {
			func(t *testing.T, w *world) {
				w.answers["/api/v1/namespaces/shop/services/api"] = object{"metadata": object{"name": "api", "namespace": "shop"},
					"spec": object{"type": "ClusterIP", "clusterIP": "None", "ports": []object{{"port": 443}}}}
				w.condition = object{"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck", "message": `cannot route to service ` +
					`with ClusterIP "None"`}
			},
			linkService, Broken, ReasonServiceUnroutable, []string{"headless"},
		},
		"no endpoints and no pods": {
			func(t *testing.T, w *world) {
				w.answers["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"] = items()
				w.answers["/api/v1/namespaces/shop/pods"] = items()
			},
			linkEndpoints, Broken, ReasonNoEndpoints, []string{"it selects app=shop", "no pod has these labels", "no Deployment"},
		},
		"a Deployment of no replicas": {
			func(t *testing.T, w *world) {
				w.answers["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"] = items()
				w.answers["/api/v1/namespaces/shop/pods"] = items()
				w.answers["/apis/apps/v1/namespaces/shop/deployments"] = items(object{
					"metadata": object{"name": "api"},
					"spec": object{"replicas": 0, "template": object{"metadata": object{"labels": object{"app": "shop", "x": "y"}},
						"spec": object{"serviceAccountName": "api"}}},
				})
			},
			linkEndpoints, Broken, ReasonNoEndpoints, []string{"deployment/api wants 0 replicas", "scale deployment/api --replicas=1"},
		},
		"a Service without a selector": {
			func(t *testing.T, w *world) {
				w.answers["/api/v1/namespaces/shop/services/api"] = object{"metadata": object{"name": "api", "namespace": "shop"},
					"spec": object{"type": "ClusterIP", "clusterIP": "127.0.0.1", "ports": []object{{"port": 443}}}}
				w.spec["service"].(object)["port"] = 443
				w.answers["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"] = items()
			},
			linkEndpoints, Broken, ReasonNoEndpoints, []string{"has no selector"},
		},
		"a pod that ends again and again": {
			func(t *testing.T, w *world) {
				w.answers["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"] = items(slice(1, false))
				w.answers["/api/v1/namespaces/shop/pods"] = items(object{
					"metadata": object{"name": "api-0", "namespace": "shop"}, "spec": object{"serviceAccountName": "api"},
					"status": object{"phase": "Running", "containerStatuses": []object{{
						"name": "api", "state": object{"waiting": object{"reason": "CrashLoopBackOff", "message": "back-off"}},
						"lastState": object{"terminated": object{"exitCode": 3, "reason": "Error", "message": "no such flag"}},
					}}},
				})
			},
			linkEndpoints, Broken, ReasonEndpointsNotReady, []string{"container api waits: CrashLoopBackOff back-off  ended with exit code 3 " +
				"(Error) no such flag", "logs -l app=shop"},
		},
		"a pod that says why it is not ready": {
			func(t *testing.T, w *world) {
				w.answers["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"] = items(slice(1, false))
				w.answers["/api/v1/namespaces/shop/pods/https:api-0:8443/proxy/readyz"] = http.HandlerFunc(func(response http.ResponseWriter,
					_ *http.Request) {
					http.Error(response, "[+]ping ok\n[-]storage failed: disk full\nreadyz check failed", http.StatusInternalServerError)
				})
			},
			linkEndpoints, Broken, ReasonEndpointsNotReady, []string{"/readyz of api-0 reports: [-]storage failed: disk full"},
		},
		"no endpoint has the port": {
			func(t *testing.T, w *world) {
				s := slice(1, true)
				s["ports"] = []object{{"name": "metrics", "port": 1}}
				w.answers["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"] = items(s)
			},
			linkEndpoints, Broken, ReasonEndpointPortMissing, []string{"no endpoint has the port https"},
		},
		"nothing listens": {
			func(t *testing.T, w *world) { w.down = true },
			linkConnection, Broken, ReasonPortClosed, []string{"nothing listens at 127.0.0.1", "connection refused", "from this machine",
				"targetPort"},
		},
		"packets are dropped": {
			func(t *testing.T, w *world) {
				w.condition = object{"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck", "message": "failing or missing " +
					"response from https://10.0.0.1: dial tcp 10.0.0.1:443: i/o timeout"}
			},
			linkConnection, Broken, ReasonUnreachable, []string{"cannot reach", "accepts connections", "networkpolicies"},
		},
		"the server does not answer": {
			func(t *testing.T, w *world) {
				w.condition = object{"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck", "message": "failing or missing " +
					"response from https://10.0.0.1: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"}
			},
			linkConnection, Broken, ReasonNoAnswer, []string{"got no answer", "logs -l app=shop"},
		},
		"nothing answers, and nothing is there": {
			func(t *testing.T, w *world) {
				w.down = true
				w.condition = object{"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck", "message": "timed out waiting for " +
					"https://10.0.0.1"}
			},
			linkConnection, Broken, ReasonUnreachable, []string{"cannot reach", "connection refused"},
		},
		"the server speaks plain HTTP": {
			func(t *testing.T, w *world) {
				w.condition = object{"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck", "message": "http: server gave HTTP " +
					"response to HTTPS client"}
			},
			linkConnection, Broken, ReasonNotTLS, []string{"does not use TLS"},
		},
		"another name in the certificate": {
			func(t *testing.T, w *world) { w.certificate = w.signs.server(t, past, future, "localhost") },
			linkName, Broken, ReasonNameNotInCertificate, []string{"is not valid for the name api.shop.svc", "has the names localhost",
				"subjectAltName=DNS:api.shop.svc"},
		},
		"no name in the certificate": {
			func(t *testing.T, w *world) { w.certificate = w.signs.server(t, past, future) },
			linkName, Broken, ReasonNameNotInCertificate, []string{"common name server, which clients ignore"},
		},
		"another authority": {
			func(t *testing.T, w *world) { w.spec["caBundle"] = newAuthority(t, "stranger", future).pem() },
			linkAuthority, Broken, ReasonUnknownAuthority, []string{`caBundle has "CN=stranger"`, `signed by "CN=shop-ca"`, `"caBundle":"'$(base64`},
		},
		"an authority that was made anew": {
			func(t *testing.T, w *world) { w.spec["caBundle"] = newAuthority(t, "shop-ca", future).pem() },
			linkAuthority, Broken, ReasonUnknownAuthority, []string{"but different keys"},
		},
		"a caBundle that is none": {
			func(t *testing.T, w *world) { w.spec["caBundle"] = []byte("none") },
			linkAuthority, Broken, ReasonCABundleUnreadable, []string{"it has no PEM certificate"},
		},
		"no caBundle": {
			func(t *testing.T, w *world) { delete(w.spec, "caBundle") },
			linkAuthority, Broken, ReasonUnknownAuthority, []string{"has no caBundle"},
		},
		"a certificate that is not verified": {
			func(t *testing.T, w *world) { delete(w.spec, "caBundle"); w.spec["insecureSkipTLSVerify"] = true },
			linkAuthority, Doubtful, ReasonNotVerified, []string{"trusts every server"},
		},
		"an expired certificate": {
			func(t *testing.T, w *world) { w.certificate = w.signs.server(t, past.Add(-time.Hour), past, dnsName) },
			linkExpiry, Broken, ReasonCertificateExpired, []string{"has expired", "is valid from"},
		},
		"a certificate of tomorrow": {
			func(t *testing.T, w *world) {
				w.certificate = w.signs.server(t, time.Now().Add(20*time.Hour), time.Now().Add(40*time.Hour), dnsName)
			},
			linkExpiry, Broken, ReasonCertificateNotYet, []string{"not valid yet"},
		},
		"a certificate that has expired by the API server's clock": {
			func(t *testing.T, w *world) {
				w.clock = 30 * time.Hour
				w.certificate = w.signs.server(t, past, time.Now().Add(20*time.Hour), dnsName)
			},
			linkExpiry, Broken, ReasonCertificateExpired, []string{"the clock of the API server is ", "ahead of this machine's"},
		},
		"a certificate that is not renewed": {
			func(t *testing.T, w *world) {
				w.certificate = w.signs.server(t, time.Now().Add(-200*time.Hour), soon, dnsName)
			},
			linkExpiry, Doubtful, ReasonExpiresSoon, []string{"less than a tenth of its lifetime is left, and it was not renewed"},
		},
		"authorities that have expired": {
			func(t *testing.T, w *world) {
				w.signs = newAuthority(t, "old", past)
				w.spec["caBundle"], w.certificate = w.signs.pem(), w.signs.server(t, past, future, dnsName)
			},
			linkExpiry, Broken, ReasonAuthorityExpired, []string{`"CN=old"`},
		},
		"the authority of two that has signed it": {
			func(t *testing.T, w *world) {
				other := w.signs
				w.signs = newAuthority(t, "old", past)
				w.spec["caBundle"], w.certificate = append(other.pem(), w.signs.pem()...), w.signs.server(t, past, future, dnsName)
			},
			linkExpiry, Broken, ReasonAuthorityExpired, []string{`"CN=old"`, "caBundle has 2 authorities, of which 1"},
		},
		"one authority of two that has expired": {
			func(t *testing.T, w *world) {
				w.spec["caBundle"] = append(newAuthority(t, "old", past).pem(), w.signs.pem()...)
			},
			linkExpiry, Doubtful, ReasonAuthorityExpired, []string{"1 of 2 authorities"},
		},
		"no front proxy": {
			func(t *testing.T, w *world) {
				delete(w.answers["/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"].(object)["data"].(object),
					"requestheader-client-ca-file")
			},
			linkFrontProxy, Broken, ReasonFrontProxyUnset, []string{"--requestheader-client-ca-file="},
		},
		"a front proxy without headers": {
			func(t *testing.T, w *world) {
				w.answers["/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"].(object)["data"].(object)["requestheader-group-headers"] = "[]"
			},
			linkFrontProxy, Broken, ReasonFrontProxyUnset, []string{"has no requestheader-group-headers"},
		},
		"a front proxy of an expired authority": {
			func(t *testing.T, w *world) {
				w.answers["/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"].(object)["data"].(object)["requestheader-client-ca-file"] = string(newAuthority(t, "fp", past).pem())
			},
			linkFrontProxy, Broken, ReasonFrontProxyExpired, []string{`"CN=fp"`},
		},
		"every client is taken for the front proxy": {
			func(t *testing.T, w *world) {
				data := w.answers["/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"].(object)["data"].(object)
				data["requestheader-client-ca-file"], data["requestheader-allowed-names"] = data["client-ca-file"], "[]"
			},
			linkFrontProxy, Doubtful, ReasonFrontProxyUnset, []string{"every client"},
		},
		"does not exist": {
			func(t *testing.T, w *world) { delete(w.answers, "/api/v1/namespaces/shop/serviceaccounts/api") },
			linkAccount, Broken, ReasonNoServiceAccount, []string{"kubectl -n shop create serviceaccount api"},
		},
		"no auth-reader": {
			func(t *testing.T, w *world) { w.lacks["get configmaps"] = true },
			linkAuthReader, Broken, ReasonAuthReaderMissing, []string{"it may not get configmaps/extension-apiserver-authentication in kube-system",
				"kubectl -n kube-system create rolebinding api.shop:extension-apiserver-authentication-reader " +
					"--role=extension-apiserver-authentication-reader --serviceaccount=shop:api"},
		},
		"no auth-delegator": {
			func(t *testing.T, w *world) { w.lacks["create tokenreviews"] = true },
			linkDelegator, Broken, ReasonDelegatorMissing, []string{"it may not create tokenreviews.authentication.k8s.io",
				"kubectl create clusterrolebinding api.shop:system:auth-delegator --clusterrole=system:auth-delegator --serviceaccount=shop:api"},
		},
		"no permission to read policies": {
			func(t *testing.T, w *world) { w.lacks["watch validatingadmissionpolicies"] = true },
			linkAdmission, Doubtful, ReasonAdmissionMissing,
			[]string{"it may not watch validatingadmissionpolicies.admissionregistration.k8s.io", "kind: ClusterRole"},
		},
		"no permission to read policies of a server that is not available": {
			func(t *testing.T, w *world) {
				w.lacks["watch namespaces"] = true
				w.server[apis] = func(response http.ResponseWriter, _ *http.Request) {
					http.Error(response, "wait", http.StatusServiceUnavailable)
				}
			},
			linkAdmission, Broken, ReasonAdmissionMissing, []string{"it may not watch namespaces", "name: api.shop:admission"},
		},
		"no permission to read policies that the cluster does not have": {
			func(t *testing.T, w *world) { w.lacks["watch mutatingadmissionpolicies"] = true },
			linkAdmission, OK, "", nil,
		},
		"no permission for flow control": {
			func(t *testing.T, w *world) { w.lacks["list flowschemas"] = true },
			linkFlowControl, Doubtful, ReasonFlowControlMissing, []string{"flowschemas.flowcontrol.apiserver.k8s.io"},
		},
		"the server does not believe the front proxy": {
			func(t *testing.T, w *world) {
				w.server[apis] = func(response http.ResponseWriter, _ *http.Request) {
					http.Error(response, "Unauthorized", http.StatusUnauthorized)
				}
			},
			linkAvailable, Broken, ReasonFrontProxyRefused, []string{"does not accept the API server as front proxy", "401"},
		},
		"a version that is not served": {
			func(t *testing.T, w *world) { delete(w.server, apis) },
			linkAvailable, Broken, ReasonVersionNotServed, []string{"does not serve shop.example.com/v1"},
		},
		"a server out of reach that answers something else": {
			func(t *testing.T, w *world) {
				w.answers["/api/v1/namespaces/shop/services/api"] = object{"metadata": object{"name": "api", "namespace": "shop"},
					"spec": object{"type": "ExternalName", "externalName": "nowhere.invalid"}}
				delete(w.server, apis)
			},
			linkName, OK, "", []string{"the API server accepts the certificate for api.shop.svc"},
		},
		"a server that fails": {
			func(t *testing.T, w *world) {
				w.server[apis] = func(response http.ResponseWriter, _ *http.Request) {
					http.Error(response, "ouch", http.StatusInternalServerError)
				}
			},
			linkAvailable, Broken, ReasonNotAvailable, []string{"500"},
		},
		"a server that is slow": {
			func(t *testing.T, w *world) {
				fast := w.server[apis]
				w.slow = 10 * time.Millisecond
				w.server[apis] = func(response http.ResponseWriter, request *http.Request) {
					select {
					case <-time.After(300 * time.Millisecond):
					case <-request.Context().Done():
					}
					fast(response, request)
				}
			},
			linkDiscovery, Broken, ReasonSlowDiscovery, []string{"more than 10ms", "medians of 5"},
		},
		"no resources": {
			func(t *testing.T, w *world) { w.server[apis] = respondWith(object{"kind": "APIResourceList"}) },
			linkDiscovery, Broken, ReasonNothingServed, nil,
		},
		"a list of resources that is stale": {
			func(t *testing.T, w *world) {
				g := group("shop.example.com")
				g["versions"].([]object)[0]["freshness"] = "Stale"
				w.answers["/apis"] = discovery(g)
			},
			linkDiscovery, Broken, ReasonStaleDiscovery, nil,
		},
		"no bookmark at the end of the list": {
			func(t *testing.T, w *world) {
				w.server[apis+"/cats"] = func(response http.ResponseWriter, _ *http.Request) {
					fmt.Fprintln(response, `{"type":"ADDED","object":{"metadata":{"name":"a"}}}`)
				}
			},
			linkWatchList, Broken, ReasonNoEndOfList, []string{"1 events within", "the end of the watch"},
		},
		"another bookmark": {
			func(t *testing.T, w *world) {
				w.server[apis+"/cats"] = func(response http.ResponseWriter, _ *http.Request) {
					fmt.Fprintln(response, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}`)
				}
			},
			linkWatchList, Broken, ReasonNoEndOfList, []string{"0 events within"},
		},
		"a watch that fails": {
			func(t *testing.T, w *world) {
				w.server[apis+"/cats"] = func(response http.ResponseWriter, _ *http.Request) {
					fmt.Fprintln(response, `{"type":"ERROR","object":{"message":"too old"}}`)
				}
			},
			linkWatchList, Broken, ReasonNoEndOfList, []string{"an event ERROR: too old"},
		},
		"a server that has no lists by watches": {
			func(t *testing.T, w *world) {
				w.server[apis+"/cats"] = func(response http.ResponseWriter, _ *http.Request) {
					failure(response, http.StatusUnprocessableEntity, "sendInitialEvents is forbidden for watch")
				}
			},
			linkWatchList, Doubtful, ReasonNoWatchList, []string{"sendInitialEvents is forbidden"},
		},
		"no OpenAPI": {
			func(t *testing.T, w *world) {
				w.answers["/openapi/v3"] = object{"paths": object{"apis/apps/v1": object{}}}
			},
			linkOpenAPI, Broken, ReasonOpenAPIMissing, []string{"kubectl explain"},
		},
		"an OpenAPI that cannot be read": {
			func(t *testing.T, w *world) { delete(w.answers, "/openapi/v3"+apis) },
			linkOpenAPI, Broken, ReasonOpenAPIMissing, []string{"cannot be read"},
		},
	} {
		t.Run(strings.ReplaceAll(what, " ", "_"), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c.fault(t, w)
			d := examined(t, w, Options{All: true})
			f := d.link(c.link)
			if f.State != c.state || f.Reason != c.reason {
				t.Fatalf("%s is %s (%s): %s\n%s", c.link, f.State, f.Reason, f.Message, d.text(true))
			}
			if c.state == Broken && d.First().Link != c.link {
				t.Errorf("first is %s\n%s", d.First().Link, d.text(true))
			}
			for _, want := range c.says {
				if text := f.Message + "\n" + strings.Join(f.Evidence, "\n") + "\n" + f.Repair; !strings.Contains(text, want) {
					t.Errorf("without %q:\n%s", want, text)
				}
			}
			if (c.state == Broken || c.state == Doubtful && c.reason != ReasonAuthorityExpired && c.reason != ReasonNoWatchList) && f.Repair == "" {
				t.Error("no repair")
			}
			if lines := strings.Count(f.Repair, "\n"); lines > 24 {
				t.Errorf("a repair of %d lines", lines)
			}
		})
	}
}

func TestExamine_stopsAtFirstBrokenLink(t *testing.T) {
	w := newWorld(t)
	w.certificate = w.signs.server(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour), "localhost")
	w.lacks["create tokenreviews"] = true
	d := examined(t, w, Options{})
	broken := 0
	for _, f := range d.Findings {
		if f.State == Broken {
			broken++
		}
		if f.State == "" || f.Message == "" {
			t.Errorf("%+v", f)
		}
	}
	if broken != 1 || d.First().Link != linkName {
		t.Errorf("\n%s", d.text(false))
	}
	if f := d.link(linkDelegator); f.State != Unseen || !strings.Contains(f.Message, "use --all") {
		t.Errorf("%+v", f)
	}
}

// A server without a permission exits, or is not ready. The repair is the permission, and not a consequence of its
// lack.
func TestFirst_cause_comesBeforeEffect(t *testing.T) {
	for what, fault := range map[string]func(w *world){
		"nothing listens": func(w *world) { w.down = true },
		"pods not ready": func(w *world) {
			w.answers["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"] = items(slice(1, false))
		},
	} {
		t.Run(strings.ReplaceAll(what, " ", "_"), func(t *testing.T) {
			w := newWorld(t)
			w.lacks["list configmaps"] = true
			fault(w)
			d := examined(t, w, Options{})
			if first := d.First(); first == nil || first.Reason != ReasonAuthReaderMissing {
				t.Errorf("\n%s", d.text(false))
			}
			if text := d.text(false); !strings.Contains(text, "cause: auth-reader") || !strings.Contains(text, "To repair: auth-reader") {
				t.Errorf("\n%s", text)
			}
		})
	}
}

// It is unknown whether a server that cannot be reached accepts writes, so its admission is not reported as the cause.
func TestFirst_unreachableServer_isNotAdmission(t *testing.T) {
	w := newWorld(t)
	w.lacks["watch namespaces"] = true
	w.answers["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"] = items(slice(1, false))
	w.answers["/apis"] = discovery()
	w.condition = object{"type": "Available", "status": "False", "reason": "MissingEndpoints", "message": "no addresses"}
	d := examined(t, w, Options{})
	if first := d.First(); first == nil || first.Link != linkEndpoints || d.link(linkAdmission).State != Doubtful {
		t.Errorf("\n%s", d.text(false))
	}
	w = newWorld(t)
	w.lacks["watch namespaces"] = true
	w.answers["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"] = items(slice(1, false))
	w.condition = object{"type": "Available", "status": "False", "reason": "MissingEndpoints", "message": "no addresses"}
	d = examined(t, w, Options{})
	if first := d.First(); first == nil || first.Link != linkAdmission {
		t.Errorf("one that has taken writes:\n%s", d.text(false))
	}
}

func TestExamine_missingPermissions_areUnseen(t *testing.T) {
	for what, c := range map[string]struct {
		change func(w *world)
		link   string
		says   string
	}{
		"Services may not be read": {func(w *world) { w.refused["/api/v1/namespaces/shop/services/api"] = true }, linkService, "the user of " +
			"the kubeconfig may not get services in shop"},
		"endpoints may not be read": {func(w *world) { w.refused["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"] = true },
			linkEndpoints, "may not list endpointslices"},
		"the ConfigMap may not": {func(w *world) {
			w.refused["/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"] = true
		}, linkFrontProxy, "may not get the ConfigMap"},
		"pods may not be read": {func(w *world) { w.refused["/api/v1/namespaces/shop/pods"] = true }, linkAccount, "--service-account"},
		"reviews may not be created": {func(w *world) { w.refused["/apis/authorization.k8s.io/v1/subjectaccessreviews"] = true },
			linkAuthReader, "may not create subjectaccessreviews"},
		"resources may not be watched": {func(w *world) { w.refused[apis+"/cats"] = true }, linkWatchList, "may not list and watch cats"},
		"OpenAPI may not be read":      {func(w *world) { w.refused["/openapi/v3"] = true }, linkOpenAPI, "may not get /openapi/v3"},
		"discovery may not be read":    {func(w *world) { w.refused[apis] = true }, linkDiscovery, "may not get " + apis},
		"an ExternalName has no endpoints": {func(w *world) {
			w.answers["/api/v1/namespaces/shop/services/api"] = object{"metadata": object{"name": "api", "namespace": "shop"},
				"spec": object{"type": "ExternalName", "externalName": "localhost"}}
		}, linkEndpoints, "the type ExternalName has no endpoints"},
		"an address that leads elsewhere": {func(w *world) {
			w.answers["/api/v1/namespaces/shop/services/api"] = object{"metadata": object{"name": "api", "namespace": "shop"},
				"spec": object{"type": "ExternalName", "externalName": "nowhere.invalid"}}
		}, linkExpiry, "doctor cannot read when it expires"},
	} {
		t.Run(strings.ReplaceAll(what, " ", "_"), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c.change(w)
			d := examined(t, w, Options{All: true})
			if f := d.link(c.link); f.State != Unseen || !strings.Contains(f.Message, c.says) {
				t.Errorf("%s\n%s", f.Message, d.text(true))
			}
			if d.First() != nil {
				t.Errorf("what cannot be seen is not broken:\n%s", d.text(true))
			}
		})
	}
}

// The address of a Service may lead elsewhere from this machine.
func TestExamine_otherCertificate_isDoubtful(t *testing.T) {
	w := newWorld(t)
	w.spec["caBundle"] = newAuthority(t, "of-the-real-one", time.Now().Add(time.Hour)).pem()
	w.condition = object{"type": "Available", "status": "True", "reason": "Passed"}
	w.answers[apis] = http.HandlerFunc(w.server[apis])
	d := examined(t, w, Options{All: true})
	if f := d.link(linkAuthority); f.State != Doubtful || !strings.Contains(f.Message, "presents another one to this machine") {
		t.Errorf("\n%s", d.text(true))
	}
}

// The API server's view counts, and not the server at the same address on this machine.
func TestExamine_otherServerAtAddress_isIgnored(t *testing.T) {
	for said, link := range map[string]string{
		"tls: failed to verify certificate: x509: certificate signed by unknown authority":                   linkAuthority,
		"tls: failed to verify certificate: x509: certificate is valid for x, not api.shop.svc":              linkName,
		"tls: failed to verify certificate: x509: certificate has expired or is not yet valid: 2 is after 1": linkExpiry,
		"dial tcp 10.0.0.1:443: i/o timeout":                                                                 linkConnection,
	} {
		w := newWorld(t)
		w.condition = object{"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck", "message": said}
		d := examined(t, w, Options{All: true})
		for _, f := range d.Findings {
			if (f.State == Broken) != (f.Link == link) {
				t.Errorf("%s:\n%s", said, d.text(true))
			}
			if strings.Contains(strings.Join(f.Evidence, "\n"), "the certificate of ") {
				t.Errorf("%s: %v", said, f.Evidence)
			}
		}
	}
}

func TestExamine_names(t *testing.T) {
	all := make([]apiService, 4)
	for i, s := range []string{"v1.shop.example.com", "v2.shop.example.com", "v1.zoo.example.com", "v1.apps"} {
		version, group, _ := strings.Cut(s, ".")
		all[i].Name, all[i].Spec.Group, all[i].Spec.Version = s, group, version
		if group != "apps" {
			all[i].Spec.Service = &serviceReference{}
		}
	}
	for given, want := range map[string]string{
		"":                    "v1.shop.example.com v2.shop.example.com v1.zoo.example.com",
		"v1.shop.example.com": "v1.shop.example.com",
		"shop.example.com/v2": "v2.shop.example.com",
		"shop.example.com":    "v1.shop.example.com v2.shop.example.com",
		"v1.apps":             "v1.apps",
		"v9.shop.example.com": "v9.shop.example.com",
		"zoo.example.com v1.apps v1.zoo.example.com": "v1.zoo.example.com v1.apps",
	} {
		if got := strings.Join(chosen(all, strings.Fields(given)), " "); got != want {
			t.Errorf("%q: %s", given, got)
		}
	}
}

func TestCheckPriorities_unreadable_isReported(t *testing.T) {
	w := newWorld(t)
	w.refused["/apis/apiextensions.k8s.io/v1/customresourcedefinitions"], w.refused["/apis"] = true, true
	d := examined(t, w, Options{})
	if f := d.link(
		linkPriorities,
	); f.State != OK ||
		!strings.Contains(f.Message, "CustomResourceDefinitions cannot be read; resources of other groups cannot be read") {
		t.Errorf("%+v", f)
	}
}

// Clusters behind a gateway have a path in their URL.
func TestExamine_clusterWithPath(t *testing.T) {
	w := newWorld(t)
	config := w.start()
	inner, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	gateway := httptest.NewServer(http.StripPrefix("/clusters/one", httputil.NewSingleHostReverseProxy(inner)))
	t.Cleanup(gateway.Close)
	config.Host = gateway.URL + "/clusters/one"
	options := Options{Slow: time.Minute}
	options.setDefaults()
	h, err := newHost(config, options.Patience)
	if err != nil {
		t.Fatal(err)
	}
	found, err := h.examine(t.Context(), options)
	if err != nil || len(found) != 1 || found[0].First() != nil {
		t.Fatal(found, err)
	}
}

func TestPrint_controlCharacters_areRemoved(t *testing.T) {
	d := Diagnosis{
		APIService: name,
		Findings:   []Finding{{Link: linkAvailable, State: Broken, Message: "a\nb", Evidence: []string{"\x1b[2J" + strings.Repeat("c", 2000)}}},
	}
	if text := d.text(false); strings.ContainsRune(text, 0x1b) || !strings.Contains(text, "a b\n") || len(text) > 1500 {
		t.Errorf("%q", text)
	}
}

func TestCheckWatchList_longList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server[apis+"/cats"] = func(response http.ResponseWriter, request *http.Request) {
		pace := time.NewTicker(time.Millisecond)
		defer pace.Stop()
		for request.Context().Err() == nil {
			fmt.Fprintln(response, `{"type":"ADDED","object":{"metadata":{"name":"a"}}}`)
			_ = http.NewResponseController(response).Flush()
			<-pace.C
		}
	}
	d := examined(t, w, Options{Patience: 3 * time.Second})
	if f := d.link(linkWatchList); f.State != Unseen || !strings.Contains(f.Message, "the list is not complete") {
		t.Errorf("%+v", f)
	}
}

func TestExamine_unknownName_suggests(t *testing.T) {
	d := examined(t, newWorld(t), Options{Names: []string{"v1.shopp.example.com"}})
	if f := d.First(); f == nil || f.Reason != ReasonNotRegistered || !strings.Contains(f.Message, "did you mean v1.shop.example.com?") {
		t.Errorf("%+v", d)
	}
	d = examined(t, newWorld(t), Options{Names: []string{"v7.elsewhere.org"}})
	if f := d.First(); f == nil || strings.Contains(f.Message, "mean") || !strings.Contains(f.Repair, "kubectl get apiservices") {
		t.Errorf("%+v", d)
	}
}

func TestExamine_localVersion(t *testing.T) {
	w := newWorld(t)
	delete(w.spec, "service")
	d := examined(t, w, Options{All: true})
	for _, f := range d.Findings[1:] {
		if f.State != Unseen && f.Link != linkFrontProxy {
			t.Errorf("%+v", f)
		}
	}
	if d.First() != nil {
		t.Errorf("%+v", d)
	}
}

func TestDiagnosis_json(t *testing.T) {
	w := newWorld(t)
	w.down = true
	d := examined(t, w, Options{})
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"apiService":"v1.shop.example.com"`, `"link":"connection",` +
		`"state":"broken","reason":"PortClosed","message":"nothing listens`, `"repair":"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("without %s: %s", want, text)
		}
	}
}
