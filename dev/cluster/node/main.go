// Command node is every server of a one-node Kubernetes in one file; the first argument says which.
//
// One binary, because the components share nearly all of their code: linked apart they would be
// seven times as large and take seven times as long to link. Built and started by dev/cluster.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	if len(os.Args) < 2 {
		fail("usage: node COMPONENT [flags]")
	}
	component := os.Args[1]
	os.Args = os.Args[1:] // each component reads its own flags from here

	switch component {
	case "etcd":
		etcdmain.Main(os.Args)
	case "coredns":
		// CoreDNS's own main lists some fifty plugins, most of them clients of other clouds.
		dnsserver.Directives = []string{"errors", "ready", "cache", "kubernetes"}
		coremain.Run()
	case "kube-apiserver":
		run(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		run(controllers.NewControllerManagerCommand())
	case "kube-scheduler":
		run(scheduler.NewSchedulerCommand())
	case "kubelet":
		run(kubelet.NewKubeletCommand(context.Background()))
	case "kube-proxy":
		run(proxy.NewProxyCommand())
	default:
		fail("node: no component is named " + component)
	}
}

func run(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(2)
}
