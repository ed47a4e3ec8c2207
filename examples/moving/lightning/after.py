import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Trainer
from loopwright.callbacks import BestModel, EarlyStopping

generator = torch.Generator().manual_seed(0)
x = torch.randn(400, 10, generator=generator)
y = x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=generator)
train_data, eval_data = TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])


class Regression(Trainer):
    def configure_models(self):
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    def configure_optimizers(self):
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)

    def train_step(self, batch):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.net(inputs), targets)
        self.update(loss)  # backward, clipping, optimizer step
        return {"loss": loss}

    def eval_step(self, batch):
        inputs, targets = batch
        return {"loss": nn.functional.mse_loss(self.net(inputs), targets)}


trainer = Regression(
    clip_norm=1.0,
    callbacks=[BestModel("eval_loss"), EarlyStopping("eval_loss", patience=3)],
    run_dir="runs/regression",
    seed=0,
)
history = trainer.train(DataLoader(train_data, batch_size=32), num_epochs=5, eval_data=eval_data)
print(f"eval loss {history.last('eval_loss'):.6f}")
