// Command client is kubectl or helm, whichever name it is called by.
//
// Apart from the servers, because it starts three times as fast without their initialisation,
// and because a cluster that is not our own node needs only this.
package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	helm "helm.sh/helm/v4/pkg/cmd"
	helmkube "helm.sh/helm/v4/pkg/kube"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the ways to log in to a cloud's cluster
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
	case "helm":
		runHelm()
	default:
		fmt.Fprintln(os.Stderr, "client: call me kubectl or helm, by a link of that name, not", name)
		os.Exit(2)
	}
}

func runHelm() {
	helmkube.ManagedFieldsManager = "helm" // else the owner of a field is named after this binary
	command, err := helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
	if err != nil {
		slog.Warn("command failed", slog.Any("error", err))
		os.Exit(1)
	}
	if err := command.Execute(); err != nil {
		if failed, ok := err.(helm.CommandError); ok {
			os.Exit(failed.ExitCode)
		}
		os.Exit(1)
	}
}
