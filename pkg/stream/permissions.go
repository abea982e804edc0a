package stream

import "strconv"

// Permissions are the subjects a NATS user may publish and subscribe to.
type Permissions struct{ Publish, Subscribe []string }

// ask is what everybody asks of JetStream: what there is, and to read it. A
// wildcard stands for a whole token, so streams cannot be told by a prefix; what
// is read is what every part sees anyway.
var ask = []string{
	"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*",
	"$JS.API.DIRECT.GET.>", "$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.MSG.NEXT.>", "$JS.API.CONSUMER.DELETE.>",
	"$JS.ACK.>", "$JS.FC.>",
}

// APIPermissions are those of the api: it adds records and changes, and sets aside
// what is no record. It can
// neither make, change, purge or delete a stream, nor say what is stored.
func APIPermissions() Permissions {
	return Permissions{
		Publish:   append([]string{"flow.*.record", ChangePrefix + ">", "$KV." + SourceBucket + ".>", DeadPrefix + strconv.Itoa(NoLane) + ".>"}, ask...),
		Subscribe: []string{"_INBOX_api.>"},
	}
}

// IngesterPermissions are those of the ingester: it moves positions, holds
// leases, keeps the state, sets dead letters aside and purges what is stored. It
// can add neither records nor changes, nor make or delete a stream.
func IngesterPermissions() Permissions {
	return Permissions{
		Publish: append([]string{
			"$KV." + PositionBucket + ".>", "$KV." + LeaseBucket + ".>", "$KV." + StateBucket + ".>",
			DeadPrefix + ">", SettledPrefix + ">", "$JS.API.STREAM.PURGE.*",
		}, ask...),
		Subscribe: []string{"_INBOX_ingester.>"},
	}
}

// OperatorPermissions are those of the operator's commands, which also make the
// streams: everything.
func OperatorPermissions() Permissions {
	return Permissions{Publish: []string{">"}, Subscribe: []string{">"}}
}
