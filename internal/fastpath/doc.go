// Package fastpath is the district of requests that are answered without upstream's handlers, several times
// faster and with the same bytes.
//
// It holds the gate: Gate.Decide names the route of a request, or the reason for which upstream's handlers answer it. All
// conditions are one table in decide.go. Package reads answers gets, lists and watches, package writes answers
// writes of single objects.
//
// It must not hold behaviour: an answer differs from upstream's in nothing but its cost, and a
// request that is unusual in any way is declined before anything has been written or stored. A server
// with the gate turned off answers the same.
//
// A request enters behind the filters of server/upstream. It leaves for storage/registry, or for upstream's routing when
// it is declined. The metrics annex_fast_path_answered_total and annex_fast_path_declined_total (metrics.go) count both;
// the tests TestFastPath of internal/testing/apitest assert their values.
package fastpath
