// Package change is what we remember besides records: users, dataset fields
// and the changes made to them, which travel through the same stream as the
// records and are applied in its order.
//
// It imports no other package of this module.
package change
