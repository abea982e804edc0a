package recordtest

import (
	"fmt"
	"strings"
)

// Realistic returns an array of n records as an engine sends them, 620 to 720
// bytes each: jobs and elements of many instances of a few processes.
func Realistic(n int) []byte {
	const job = `{"id":"1-%d","partitionId":1,"position":%d,"key":%d,"recordType":"EVENT","valueType":"JOB","intent":"%s","timestamp":%d,"value":{"bpmnProcessId":"%s","processDefinitionKey":%d,"processDefinitionVersion":3,"processInstanceKey":"%d","elementId":"Activity_%d","elementInstanceKey":%d,"type":"payment.charge","worker":"worker-%d","retries":3,"deadline":%d,"errorCode":"","errorMessage":"","customHeaders":{"config":"{\"nodeId\":\"Activity_%d\",\"url\":\"http://svc/api\"}"},"variables":{"approved":true,"amount":%d.5,"note":null,"tags":["a","b"]},"tenantId":"<default>","timeout":-1}}`
	const element = `{"id":"1-%d","partitionId":1,"position":%d,"sourceRecordPosition":7560,"brokerVersion":"8.5.2","recordVersion":1,"rejectionType":"NULL_VAL","rejectionReason":"","authorizations":{"authorized_tenants":["<default>"]},"key":%d,"recordType":"EVENT","valueType":"PROCESS_INSTANCE","intent":"%s","timestamp":%d,"value":{"bpmnProcessId":"%s","version":3,"processDefinitionKey":%d,"processInstanceKey":%d,"elementId":"Activity_%d","flowScopeKey":2251799813685290,"bpmnElementType":"SERVICE_TASK","bpmnEventType":"UNSPECIFIED","parentProcessInstanceKey":-1,"parentElementInstanceKey":-1,"tenantId":"<default>"}}`
	records := make([]string, n)
	for i := range records {
		process, instance := fmt.Sprintf("order-fulfillment-%d", i/7%12), 2251799813685249+i/20*7
		key, at := 2251799813700000+i, 1763701200123+i*3
		if i%2 == 0 {
			intent := []string{"CREATED", "COMPLETED"}[i/2%2]
			records[i] = fmt.Sprintf(job, i, i, key, intent, at, process, 2251799813685249+i/7%12, instance, i%20, key, i%5, at+300000, i%20, i%1000)
		} else {
			intent := []string{"ELEMENT_ACTIVATED", "ELEMENT_COMPLETED"}[i/2%2]
			records[i] = fmt.Sprintf(element, i, i, key, intent, at, process, 2251799813685249+i/7%12, instance, i%20)
		}
	}
	return []byte("[" + strings.Join(records, ",") + "]")
}
